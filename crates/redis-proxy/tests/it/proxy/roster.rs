//! Which connections does a client see, and kill? Never those that control the proxy.

use super::{Setup, until};

#[tokio::test(flavor = "multi_thread")]
async fn clients_neither_see_nor_end_the_connections_of_coordinators_and_proxies() -> anyhow::Result<()> {
    let setup = Setup::start(1).await?;
    let (mut coordinator, mut peer) = (setup.client()?, setup.client()?);
    let (mut client, mut other) = (setup.client()?, setup.client()?);
    for (wire, name) in [
        (&mut coordinator, "coordinator"),
        (&mut peer, "peer"),
        (&mut client, "client"),
        (&mut other, "other"),
    ] {
        assert_eq!(wire.say(&format!("CLIENT SETNAME {name}"))?, "+OK\r\n");
    }
    assert!(coordinator.say("NMCTL EPOCH")?.starts_with('*'));
    assert_eq!(peer.say("NMCTL PEER db")?, "+OK\r\n");
    let list = client.say("CLIENT LIST")?;
    assert!(list.contains("name=client ") && list.contains("name=other "), "{list}");
    assert!(!list.contains("name=coordinator ") && !list.contains("name=peer "), "{list}");
    let all = coordinator.say("CLIENT LIST")?;
    for name in ["coordinator", "client", "other"] {
        assert!(all.contains(&format!("name={name} ")), "{all}");
    }

    let address = coordinator.socket().local_addr()?;
    assert_eq!(client.say(&format!("CLIENT KILL {address}"))?, "-ERR No such client\r\n");
    assert_eq!(client.say(&format!("CLIENT KILL ADDR {address}"))?, ":0\r\n");
    assert_eq!(client.say("CLIENT KILL TYPE normal")?, ":1\r\n", "the other client alone");
    until("the other client is gone", || Ok(!client.say("CLIENT LIST")?.contains("name=other ")));
    assert!(coordinator.say("NMCTL EPOCH")?.starts_with('*'));
    assert_eq!(peer.say("SET k v")?, "+OK\r\n");
    Ok(())
}
