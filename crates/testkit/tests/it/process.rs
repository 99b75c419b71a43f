use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use capstan_testkit::crash::CrashLoop;
use capstan_testkit::process::{capstan_binary, child_arguments, child_test, report_ready};
use capstan_testkit::{Port, Process, Ready, TempDir, eventually};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

use crate::DEADLINE;

/// Child role: answers each line with its process id.
#[test]
fn echo_child() {
    let Some(arguments) = child_arguments("process::echo_child") else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let listener = TcpListener::bind(&arguments[0]).await.unwrap();
        println!("echo child serves");
        report_ready(&listener.local_addr().unwrap().to_string());
        loop {
            let (mut client, _) = listener.accept().await.unwrap();
            client.write_all(format!("{}\n", std::process::id()).as_bytes()).await.unwrap();
        }
    });
}

fn echo(dir: &TempDir, port: &Port) -> Process {
    let child = child_test("process::echo_child", &dir.join("ready"), [port.addr().to_string()]).unwrap();
    child.spawn(dir.join("echo.log")).unwrap()
}

async fn answered_by(port: &Port) -> Result<u32, String> {
    let client = TcpStream::connect(port.addr()).await.map_err(|e| e.to_string())?;
    let mut line = String::new();
    BufReader::new(client).read_line(&mut line).await.map_err(|e| e.to_string())?;
    line.trim().parse().map_err(|_| format!("answer {line:?}"))
}

#[tokio::test]
async fn every_sign_of_readiness_is_seen_and_the_listener_is_the_childs_own() {
    let (dir, port) = (TempDir::new("process").unwrap(), Port::reserve().unwrap());
    let mut child = echo(&dir, &port);
    child.ready(&Ready::File(dir.join("ready")), DEADLINE).await.unwrap();
    child.ready(&Ready::LogLine("echo child serves".into()), DEADLINE).await.unwrap();
    child.ready(&Ready::Port(port.number()), DEADLINE).await.unwrap();
    assert_eq!(answered_by(&port).await.unwrap(), child.pid());
    assert_eq!(std::fs::read_to_string(dir.join("ready")).unwrap().trim(), port.addr().to_string());
}

#[tokio::test]
async fn a_listener_of_somebody_else_is_not_mistaken_for_the_child() {
    let (dir, port) = (TempDir::new("process").unwrap(), Port::reserve().unwrap());
    let _squatter = TcpListener::bind(port.addr()).await.unwrap();
    let mut child = Process::builder("sleep").arg("600").spawn(dir.join("log")).unwrap();
    let outcome = child.ready(&Ready::Port(port.number()), Duration::from_millis(50)).await;
    let message = format!("{:#}", outcome.unwrap_err());
    assert!(message.contains("another process listens on port"), "{message}");
}

#[tokio::test]
async fn a_child_that_ends_early_is_reported_at_once_with_its_output() {
    let dir = TempDir::new("process").unwrap();
    let script = "echo no such option >&2; exit 3";
    let mut child = Process::builder("sh").args(["-c", script]).spawn(dir.join("log")).unwrap();
    let outcome = child.ready(&Ready::Port(1), Duration::from_secs(3600)).await;
    let message = format!("{:#}", outcome.unwrap_err());
    assert!(message.contains("exit status: 3") && message.contains("no such option"), "{message}");
}

#[test]
fn a_missing_program_is_an_error_that_names_the_package() {
    let dir = TempDir::new("process").unwrap();
    let builder = Process::builder("no-such-server").debian_package("no-such-package");
    let message = format!("{:#}", builder.spawn(dir.join("log")).unwrap_err());
    assert!(message.contains("no-such-server is not in PATH"), "{message}");
    assert!(message.contains("Debian's package no-such-package"), "{message}");
}

#[tokio::test]
async fn a_paused_child_keeps_its_connections_and_goes_on_where_it_was() {
    let (dir, port) = (TempDir::new("process").unwrap(), Port::reserve().unwrap());
    let mut child = echo(&dir, &port);
    child.ready(&Ready::Port(port.number()), DEADLINE).await.unwrap();
    child.pause().unwrap();
    let answer = answered_by(&port);
    tokio::pin!(answer);
    assert!(tokio::time::timeout(Duration::from_millis(100), &mut answer).await.is_err());
    child.resume().unwrap();
    assert_eq!(answer.await.unwrap(), child.pid());
}

#[tokio::test]
async fn kill9_frees_the_port_and_restart_serves_on_it_again() {
    let (dir, port) = (TempDir::new("process").unwrap(), Port::reserve().unwrap());
    let mut child = echo(&dir, &port);
    child.ready(&Ready::Port(port.number()), DEADLINE).await.unwrap();
    let first = child.pid();
    assert_eq!(child.kill9().unwrap().signal(), Some(9));
    assert!(answered_by(&port).await.is_err());
    child.restart().unwrap();
    child.ready(&Ready::Port(port.number()), DEADLINE).await.unwrap();
    assert_ne!(answered_by(&port).await.unwrap(), first);
}

#[tokio::test]
async fn a_crash_loop_checks_every_round() {
    let (dir, port) = (TempDir::new("process").unwrap(), Port::reserve().unwrap());
    let mut child = echo(&dir, &port);
    let ready = Ready::File(dir.join("ready"));
    child.ready(&ready, DEADLINE).await.unwrap();
    let mut victims = vec![child.pid()];
    let lifetime = Duration::ZERO..Duration::from_millis(5);
    let mut crash_loop =
        CrashLoop { process: &mut child, ready, restart_deadline: DEADLINE, lifetime, seed: 1 };
    let check = async |_| {
        victims.push(answered_by(&port).await.map_err(anyhow::Error::msg)?);
        Ok(())
    };
    crash_loop.run(3, check).await.unwrap();
    victims.dedup();
    assert_eq!(victims.len(), 4);
}

/// Child role: prints the `capstan` binary it would test.
#[test]
fn binary_child() {
    if child_arguments("process::binary_child").is_some() {
        println!("{:?}", capstan_binary());
    }
}

#[tokio::test]
async fn the_given_binary_is_taken_and_a_wrong_one_is_named() {
    let dir = TempDir::new("process").unwrap();
    for (given, expected) in
        [("/bin/sh", "Ok(\"/bin/sh\")"), ("/no/capstan", "CAPSTAN_BIN names /no/capstan")]
    {
        let child = child_test("process::binary_child", &dir.join("ready"), [""; 0]).unwrap();
        let mut child = child.env("CAPSTAN_BIN", given).spawn(dir.join("log")).unwrap();
        child.exited(DEADLINE).await.unwrap();
        assert!(child.log_text().contains(expected), "{}", child.log_text());
    }
}

/// Child role: starts a child of its own, prints its id, and waits to be killed.
#[test]
fn orphaning_child() {
    let Some(arguments) = child_arguments("process::orphaning_child") else { return };
    let child = Process::builder("sleep").arg("600").spawn(&arguments[0]).unwrap();
    report_ready(&child.pid().to_string());
    loop {
        std::thread::park();
    }
}

#[tokio::test]
async fn a_killed_test_leaves_no_orphans() {
    let dir = TempDir::new("process").unwrap();
    let ready = dir.join("ready");
    let parent = child_test("process::orphaning_child", &ready, [dir.join("child.log")]).unwrap();
    let mut parent = parent.spawn(dir.join("parent.log")).unwrap();
    parent.ready(&Ready::File(ready.clone()), DEADLINE).await.unwrap();
    let orphan = std::fs::read_to_string(&ready).unwrap().trim().to_owned();
    parent.kill9().unwrap();
    eventually("the grandchild is gone", DEADLINE, async || {
        let state = std::fs::read_to_string(format!("/proc/{orphan}/stat")).unwrap_or_default();
        let gone = state.is_empty() || state.contains(") Z ");
        if gone { Ok(()) } else { Err(state) }
    })
    .await;
}
