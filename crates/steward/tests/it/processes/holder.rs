//! The child: one holder in its own process, with a line protocol for its clients.
//!
//! `append LOG TEXT` answers `ok OFFSET` or `no WHY`; `index LOG` the offset for a linearizable read, in the same way;
//! `read LOG` every committed entry as `OFFSET TEXT`, and then `end` or `no WHY`.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use capstan_log::{Disk, HostOptions, LogError, LogName, Offset, disk};
use capstan_meta::Store;
use capstan_meta::etcd::{Etcd, EtcdOptions};
use capstan_meta::session::Session;
use capstan_steward::holder::{Holder, HolderOptions, NoOwner};
use capstan_testkit::process;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::crowded::Crowded;
use crate::cluster::{disk_options, id, service, session_options, timing};

#[test]
fn child() {
    let Some(arguments) = process::child_arguments("processes::holder::child") else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(serve(&arguments));
}

/// Arguments: holder, directory, metadata endpoint, address for holders, the same as others see it, address for clients.
async fn serve(arguments: &[String]) {
    let [me, dir, endpoint, listen, advertise, clients] = arguments else { panic!("{arguments:?}") };
    let store = Store::new(Etcd::connect(EtcdOptions::new([endpoint])).await.unwrap());
    let session = Session::start(store.clone(), session_options());
    let mut options = HolderOptions::new(id(me), me.parse().unwrap(), service(), dir.into());
    options.advertise = Some(advertise.parse().unwrap());
    options.log = HostOptions { timing: timing(), append_within: Duration::from_secs(2), ..options.log };
    // Short journal files, so that a full disk is soon noticed.
    let disk = disk::Options { journal_file_bytes: 128 * 1024, ..disk_options() };
    let disk = Disk::open_on(Arc::new(Crowded::new(dir)), dir.as_ref(), disk).unwrap();
    let listener = TcpListener::bind(listen).await.unwrap();
    let clients = TcpListener::bind(clients).await.unwrap();
    let holder =
        Holder::start_on(options, disk, listener, &store, &session, Arc::new(NoOwner)).await.unwrap();
    process::report_ready("serving");
    let mut tasks = JoinSet::new();
    loop {
        let (stream, _) = clients.accept().await.unwrap();
        tasks.spawn(client(stream, holder.clone()));
    }
}

async fn client(stream: TcpStream, holder: Holder) {
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    while stream.read_line(&mut line).await.is_ok_and(|bytes| bytes > 0) {
        let answer = match line.trim_end().splitn(3, ' ').collect::<Vec<_>>()[..] {
            ["append", log, text] => append(&holder, &log.parse().unwrap(), text).await,
            ["index", log] => index(&holder, &log.parse().unwrap()).await,
            ["read", log] => match read(&holder, &log.parse().unwrap()).await {
                Ok(entries) => entries + "end\n",
                Err(error) => format!("no {error}\n"),
            },
            _ => panic!("not a request: {line}"),
        };
        if stream.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
        line.clear();
    }
}

async fn append(holder: &Holder, name: &LogName, text: &str) -> String {
    let Some(log) = holder.opened(name) else { return "no it is not open\n".to_owned() };
    match log.append(vec![Bytes::from(text.to_owned())]).await {
        Ok((first, _)) => format!("ok {first}\n"),
        Err(error) => format!("no {error}\n"),
    }
}

async fn index(holder: &Holder, name: &LogName) -> String {
    let Some(log) = holder.opened(name) else { return "no it is not open\n".to_owned() };
    match log.read_index().await {
        Ok(offset) => format!("ok {offset}\n"),
        Err(error) => format!("no {error}\n"),
    }
}

async fn read(holder: &Holder, name: &LogName) -> Result<String, LogError> {
    let log = holder.log(name).await;
    let (mut from, mut answer) = (Offset::ZERO, String::new());
    loop {
        let batch = log.read(from, 1 << 20).await?;
        for entry in &batch.entries {
            answer += &format!("{} {}\n", entry.offset, String::from_utf8_lossy(&entry.data));
        }
        if batch.next == from {
            return Ok(answer);
        }
        from = batch.next;
    }
}
