//! The supervisor restarts, gives up, shuts down in order, and names hanging tasks.

// tidy: the clock is paused in this file

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use capstan_control::tasks::{Kind, OnFailure, Stage, Supervisor};
use capstan_testkit::eventually;
use tokio::time::{Instant, sleep};

const LISTENER: Kind = Kind { name: "listener", on_failure: OnFailure::ShutDown, stage: Stage::Accepting };
const WORKER: Kind = Kind { name: "worker", on_failure: OnFailure::Restart, stage: Stage::Working };
const HOLDER: Kind = Kind { name: "holder", on_failure: OnFailure::ShutDown, stage: Stage::Holding };
const ASIDE: Kind = Kind { name: "aside", on_failure: OnFailure::Log, stage: Stage::Working };

#[tokio::test(start_paused = true)]
async fn a_shutdown_goes_through_the_stages_in_order() {
    let supervisor = Supervisor::new(1);
    let stopped = Arc::new(Mutex::new(Vec::new()));
    for kind in [HOLDER, WORKER, LISTENER] {
        let stopped = stopped.clone();
        supervisor.start(kind, "a", move |stop| {
            let stopped = stopped.clone();
            async move {
                stop.cancelled().await;
                sleep(Duration::from_secs(1)).await;
                stopped.lock().unwrap().push(kind.name);
                Ok(())
            }
        });
    }
    assert_eq!(supervisor.snapshot().len(), 3);
    let report = supervisor.shut_down(Duration::from_secs(30)).await;
    assert_eq!(report.to_string(), "everything stopped");
    assert_eq!(*stopped.lock().unwrap(), ["listener", "worker", "holder"]);
    assert!(supervisor.snapshot().is_empty());
}

#[tokio::test(start_paused = true)]
async fn what_hangs_is_named_and_aborted_and_leaves_time_for_the_rest() {
    let supervisor = Supervisor::new(1);
    let held = Arc::new(());
    let in_task = held.clone();
    supervisor.start(LISTENER, "redis 127.0.0.1:6379", move |_stop| {
        let held = in_task.clone();
        async move {
            std::future::pending::<()>().await;
            drop(held);
            Ok(())
        }
    });
    supervisor.start(HOLDER, "store", |stop| async move {
        stop.cancelled().await;
        sleep(Duration::from_secs(5)).await;
        Ok(())
    });
    let begun = Instant::now();
    let report = supervisor.shut_down(Duration::from_secs(30)).await;
    assert_eq!(report.to_string(), "did not stop in time: listener redis 127.0.0.1:6379");
    assert!(begun.elapsed() <= Duration::from_secs(30));
    while Arc::strong_count(&held) > 1 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_failure_means_what_the_kind_says() {
    let supervisor = Supervisor::new(1);
    supervisor.start(WORKER, "flaky", |_stop| async { Err("no luck".into()) });
    supervisor.start(WORKER, "panicking", |_stop| async { panic!("boom") });
    supervisor.start(ASIDE, "once", |_stop| async { Err("never mind".into()) });
    sleep(Duration::from_secs(300)).await;
    let running = supervisor.snapshot();
    assert_eq!(running.len(), 2, "{running:?}");
    for task in &running {
        assert!(task.restarts > 5 && task.restarts < 100, "{task:?}");
    }
    assert_eq!(running[1].last_failure.as_deref(), Some("it panicked: boom"));
    let counts = supervisor.counts();
    assert!(counts.iter().any(|count| count.kind == "aside" && count.failed == 1 && count.running == 0));

    supervisor.start(LISTENER, "a", |_stop| async { Ok(()) });
    let failure = supervisor.failed().await;
    assert_eq!(failure.to_string(), "task listener a failed: it ended by itself");
    assert!(supervisor.shut_down(Duration::from_secs(1)).await.hung.is_empty());
}

/// An aborted task runs to its next await. It must not write beside its successor.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_aborted_task_is_waited_for() {
    let supervisor = Supervisor::new(1);
    let (busy, ended) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (is_busy, has_ended) = (busy.clone(), ended.clone());
    supervisor.start(HOLDER, "writer", move |stop| {
        let (busy, ended) = (busy.clone(), ended.clone());
        async move {
            busy.store(true, Ordering::SeqCst);
            while !stop.is_cancelled() {
                std::thread::yield_now();
            }
            // Work without an await, which no abort interrupts.
            (0..1_000).for_each(|_| std::thread::yield_now());
            ended.store(true, Ordering::SeqCst);
            std::future::pending().await
        }
    });
    eventually("the task works", Duration::from_secs(10), async || {
        if is_busy.load(Ordering::SeqCst) { Ok(()) } else { Err("not yet") }
    })
    .await;
    supervisor.shut_down(Duration::ZERO).await;
    assert!(has_ended.load(Ordering::SeqCst), "the shutdown is over and the task still works");
    assert!(supervisor.snapshot().is_empty());
}

#[tokio::test(start_paused = true)]
async fn who_is_started_during_a_shutdown_is_asked_to_stop_at_once() {
    let supervisor = Supervisor::new(1);
    supervisor.shut_down(Duration::from_secs(1)).await;
    supervisor.start(WORKER, "late", |stop| async move {
        stop.cancelled().await;
        Ok(())
    });
    while !supervisor.snapshot().is_empty() {
        tokio::task::yield_now().await;
    }
}
