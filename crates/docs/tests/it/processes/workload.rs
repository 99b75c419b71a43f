//! Clients that write while things break, and what they may expect at the end.
//!
//! Each client retries a request until it is answered, on the next node each time. Appends carry a number of their own
//! and are refused where they already happened, so a request whose answer was lost is made again without a second
//! effect: 800 increments add up to 800 whatever breaks. A register's list of numbers is its history.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use capstan_testkit::history::{self, Call, Change, Event, Operation, Outcome, Seen};
use serde_json::{Value, json};
use tokio::task::JoinSet;

/// How long one request is retried.
const GIVE_UP: Duration = Duration::from_secs(90);
/// Pause between two attempts.
const PAUSE: Duration = Duration::from_millis(50);
/// Documents that are incremented.
pub const REGISTERS: usize = 20;
/// Increments of one run.
pub const INCREMENTS: usize = 800;

/// What happened to one register: an append of a number, or a read of the whole list.
#[derive(Clone, Debug)]
pub enum Done {
    Appended(u64),
    Read(Vec<u64>),
}

/// One operation on one register, with the tickets of its begin and its end.
#[derive(Clone, Debug)]
pub struct Step {
    pub invoked: u64,
    pub returned: u64,
    pub done: Done,
}

#[derive(Default)]
pub struct Shared {
    tickets: AtomicU64,
    appends: AtomicUsize,
    next: AtomicUsize,
    /// Set when the clients are to end, as soon as all increments are made.
    stop: AtomicBool,
    steps: Mutex<BTreeMap<usize, Vec<Step>>>,
    inserted: Mutex<BTreeSet<String>>,
    deleted: Mutex<BTreeSet<String>>,
    retries: AtomicUsize,
}

#[derive(Clone)]
pub struct Workload {
    shared: Arc<Shared>,
    urls: Arc<Mutex<Vec<String>>>,
    client: reqwest::Client,
}

impl Workload {
    /// A database with the registers.
    pub async fn prepare(client: &reqwest::Client, urls: Vec<String>) -> Workload {
        let shared = Arc::new(Shared::default());
        let work = Workload { shared, urls: Arc::new(Mutex::new(urls)), client: client.clone() };
        work.ask("POST", "/db", &json!({ "name": "w" }), &[202, 200]).await;
        for name in ["registers", "inserts"] {
            let body = json!({ "collection": name, "options": { "primaryKey": ["k"] } });
            work.ask("POST", "/db/w", &body, &[202, 200]).await;
        }
        for k in 0..REGISTERS {
            let body = json!({ "doc": { "k": k, "n": 0, "seen": [] } });
            work.ask("POST", "/db/w/registers", &body, &[202, 409]).await;
        }
        work
    }

    /// The nodes that clients use from now on.
    pub fn use_nodes(&self, urls: Vec<String>) {
        *self.urls.lock().unwrap() = urls;
    }

    fn url(&self) -> String {
        let urls = self.urls.lock().unwrap();
        urls[self.shared.next.fetch_add(1, Ordering::Relaxed) % urls.len()].clone()
    }

    /// Asks one node after the other until one gives an answer that counts.
    async fn ask(&self, method: &str, path: &str, body: &Value, wanted: &[u16]) -> (u16, Value) {
        let begun = Instant::now();
        loop {
            let request = self.client.request(method.parse().unwrap(), format!("{}{path}", self.url()));
            let request = if method == "GET" { request } else { request.json(body) };
            let why = match request.timeout(Duration::from_secs(8)).send().await {
                Ok(answer) => {
                    let status = answer.status().as_u16();
                    match answer.json::<Value>().await {
                        Ok(value) if wanted.contains(&status) => return (status, value),
                        Ok(value) => format!("{status} {value}"),
                        Err(error) => error.to_string(),
                    }
                }
                Err(error) => error.to_string(),
            };
            self.shared.retries.fetch_add(1, Ordering::Relaxed);
            assert!(begun.elapsed() < GIVE_UP, "{method} {path} was refused for {GIVE_UP:?}: {why}");
            tokio::time::sleep(PAUSE).await; // tidy: allow, because a client pauses before it asks again
        }
    }

    fn ticket(&self) -> u64 {
        self.shared.tickets.fetch_add(1, Ordering::SeqCst)
    }

    fn note(&self, register: usize, invoked: u64, done: Done) {
        let step = Step { invoked, returned: self.ticket(), done };
        self.shared.steps.lock().unwrap().entry(register).or_default().push(step);
    }

    async fn append(&self, register: usize, number: u64) {
        let invoked = self.ticket();
        let filter = json!({ "k": register, "seen": { "$ne": number } });
        let update = json!({ "$inc": { "n": 1 }, "$push": { "seen": number } });
        let body = json!({ "filter": filter, "update": update, "options": { "one": true } });
        // 200 without a match: an earlier attempt of this append happened.
        self.ask("PUT", "/db/w/registers", &body, &[200]).await;
        self.note(register, invoked, Done::Appended(number));
    }

    async fn list(&self, register: usize) -> (i64, Vec<u64>) {
        let path = format!("/db/w/registers?query[k]={register}&options[one]=true");
        let (_, found) = self.ask("GET", &path, &Value::Null, &[200]).await;
        let document = &found["data"][0];
        let seen = document["seen"].as_array().unwrap_or_else(|| panic!("{found}"));
        (document["n"].as_i64().unwrap(), seen.iter().map(|number| number.as_u64().unwrap()).collect())
    }

    /// Starts so many clients.
    pub fn start(&self, clients: usize) -> JoinSet<()> {
        let mut started = JoinSet::new();
        for number in 0..clients {
            started.spawn(self.clone().client(number));
        }
        started
    }

    /// Has the clients end when all increments are made, and waits for them.
    pub async fn end(&self, mut clients: JoinSet<()>) {
        self.shared.stop.store(true, Ordering::Relaxed);
        while let Some(ended) = clients.join_next().await {
            ended.unwrap();
        }
    }

    /// One client: increments while there are some left, reads, inserts and deletes documents of its own.
    async fn client(self, number: usize) {
        let mut turn = 0_usize;
        loop {
            turn += 1;
            let at = self.shared.appends.fetch_add(1, Ordering::SeqCst);
            if at < INCREMENTS {
                self.append((number * 7 + turn) % REGISTERS, at as u64).await;
            } else if self.shared.stop.load(Ordering::Relaxed) {
                return;
            }
            let register = (number + turn * 3) % REGISTERS;
            let invoked = self.ticket();
            let (_, seen) = self.list(register).await;
            self.note(register, invoked, Done::Read(seen));
            let key = format!("{number}-{turn}");
            let body = json!({ "doc": { "k": key, "text": "x".repeat(200) } });
            self.ask("POST", "/db/w/inserts", &body, &[202, 409]).await;
            self.shared.inserted.lock().unwrap().insert(key.clone());
            if turn.is_multiple_of(4) {
                let path = format!("/db/w/inserts?filter[k]={key}&options[one]=true");
                self.ask("DELETE", &path, &json!({}), &[200]).await;
                self.shared.deleted.lock().unwrap().insert(key);
            }
        }
    }

    /// Checks everything that was acknowledged, and returns a line of figures.
    pub async fn verify(&self) -> String {
        let mut sum = 0;
        let (mut operations, mut reads) = (0, 0);
        let steps = self.shared.steps.lock().unwrap().clone();
        for register in 0..REGISTERS {
            let (n, seen) = self.list(register).await;
            assert_eq!(usize::try_from(n).unwrap(), seen.len(), "register {register}");
            sum += n;
            let steps = steps.get(&register).cloned().unwrap_or_default();
            reads += steps.iter().filter(|step| matches!(step.done, Done::Read(_))).count();
            let checked =
                check(&steps, &seen).unwrap_or_else(|found| panic!("register {register}: {found:?}"));
            operations += checked.known;
        }
        assert_eq!(sum, INCREMENTS as i64, "every increment counts once");
        let (inserted, deleted) =
            (self.shared.inserted.lock().unwrap().clone(), self.shared.deleted.lock().unwrap().clone());
        let mut present = BTreeSet::new();
        let mut cursor = String::new();
        loop {
            let path = format!("/db/w/inserts?options[limit]=1000&projection[]=k&options[cursor]={cursor}");
            let (_, page) = self.ask("GET", &path, &Value::Null, &[200]).await;
            let found = page["data"].as_array().unwrap();
            present.extend(found.iter().map(|document| document["k"].as_str().unwrap().to_owned()));
            match page["cursor"].as_str() {
                Some(next) => cursor = next.to_owned(),
                None => break,
            }
        }
        let lost: Vec<_> = inserted.difference(&deleted).filter(|key| !present.contains(*key)).collect();
        let back: Vec<_> = deleted.intersection(&present).collect();
        assert!(
            lost.is_empty(),
            "{} of {} acknowledged documents are lost: {lost:?}",
            lost.len(),
            inserted.len()
        );
        assert!(back.is_empty(), "deleted documents are back: {back:?}");
        let retries = self.shared.retries.load(Ordering::Relaxed);
        format!(
            "{sum} increments, {reads} reads, {operations} operations linearizable, {} inserts, {} deletes, {retries} retries",
            inserted.len(),
            deleted.len()
        )
    }
}

/// Is the history of one register linearizable? Its list, as it is at the end, is the order of the appends; a list of
/// some length is the state at that revision.
pub fn check(steps: &[Step], at_the_end: &[u64]) -> Result<history::Checked, Vec<history::Violation>> {
    let place: BTreeMap<u64, u64> =
        (1..).zip(at_the_end).map(|(revision, number)| (*number, revision)).collect();
    let event = |(revision, number): (u64, &u64)| Event { revision, change: Change::Put((), *number) };
    let log: Vec<Event<(), u64>> = (1..).zip(at_the_end).map(event).collect();
    let mut operations = Vec::new();
    for step in steps {
        let (call, outcome) = match &step.done {
            Done::Appended(number) => {
                let call = Call::Commit { guards: Vec::new(), changes: vec![Change::Put((), *number)] };
                // An append that is not in the list is lost: it claims a revision that the log does not have.
                let revision = place.get(number).copied().unwrap_or(u64::MAX);
                (call, Outcome::Committed { revision })
            }
            Done::Read(list) => {
                let revision = list.len() as u64;
                let entries = list.last().map(|last| ((), Seen { value: *last, modified: revision }));
                (Call::Get(()), Outcome::Found { revision, entries: entries.into_iter().collect() })
            }
        };
        operations.push(Operation { invoked: step.invoked, returned: step.returned, call, outcome });
    }
    // A read that is not a beginning of the list at the end is of another history.
    let torn = steps.iter().find_map(|step| match &step.done {
        Done::Read(list) if !at_the_end.starts_with(list) => Some(format!("{list:?}")),
        Done::Read(_) | Done::Appended(_) => None,
    });
    if let Some(evidence) = torn {
        return Err(vec![history::Violation { rule: history::Rule::ReadsAreTrue, evidence }]);
    }
    history::check(&operations, &log)
}
