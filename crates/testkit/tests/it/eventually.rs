use std::time::{Duration, Instant};

use capstan_testkit::{eventually, try_eventually, try_eventually_blocking};

use crate::DEADLINE;

#[tokio::test]
async fn returns_what_the_condition_found() {
    let mut looks = 0;
    let found = eventually("the third look", DEADLINE, async || {
        looks += 1;
        if looks == 3 { Ok("found") } else { Err(format!("look {looks}")) }
    })
    .await;
    assert_eq!((found, looks), ("found", 3));
}

#[tokio::test(start_paused = true)]
async fn a_timeout_names_the_condition_the_last_sight_and_the_waiter() {
    let began = tokio::time::Instant::now();
    let outcome =
        try_eventually("pigs fly", Duration::from_secs(3600), async || Err::<(), _>("pigs walk")).await;
    let message = outcome.unwrap_err().to_string();
    assert!(message.contains("pigs fly") && message.contains("last seen: pigs walk"), "{message}");
    assert!(message.contains("eventually.rs") && message.contains("3600s"), "{message}");
    assert_eq!(began.elapsed(), Duration::from_secs(3600));
}

#[tokio::test(start_paused = true)]
async fn a_condition_that_hangs_is_cut_off() {
    let look = async || std::future::pending::<Result<(), String>>().await;
    let outcome = try_eventually("an answer", Duration::from_secs(5), look).await;
    assert!(outcome.unwrap_err().to_string().contains("has not answered yet"));
}

#[test]
fn the_blocking_form_keeps_its_deadline() {
    let began = Instant::now();
    let outcome = try_eventually_blocking("never", Duration::from_millis(300), || Err::<(), _>("no"));
    let timed_out = outcome.unwrap_err();
    assert!(began.elapsed() >= Duration::from_millis(300));
    assert!(timed_out.looks > 1, "{timed_out}");
}

#[tokio::test]
async fn spawned_tasks_can_wait_too() {
    let mut tasks = tokio::task::JoinSet::new();
    let shared = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
    tasks.spawn(async move {
        eventually("a counter reaches three", DEADLINE, async move || {
            tokio::task::yield_now().await;
            let count = shared.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            if count == 3 { Ok(count) } else { Err(count) }
        })
        .await
    });
    assert_eq!(tasks.join_all().await, [3]);
}
