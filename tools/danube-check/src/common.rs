//! What both versions of the client can do, written once: the two crates have the same names for it.

/// The checks of one version; `$made` turns what a builder returns into a result.
#[macro_export]
macro_rules! common_checks {
    ($client:ident, $core:ident, $made:path) => {
        use std::collections::{BTreeSet, HashMap};
        use std::time::Duration;

        use anyhow::{Context as _, Result, ensure};
        use tokio::sync::mpsc::Receiver;
        use tokio::time::timeout;
        use $client::{Consumer, DanubeClient, Producer, SubType};
        use $core::message::StreamMessage;

        use $crate::{NOTHING, SOON, numbers, run_name, step};

        pub async fn connect(url: &str) -> Result<DanubeClient> {
            Ok(DanubeClient::builder().service_url(url).build().await?)
        }

        pub async fn producer(client: &DanubeClient, topic: &str) -> Result<Producer> {
            let builder =
                client.new_producer().with_topic(topic).with_name("producer").with_reliable_dispatch();
            let mut producer = $made(builder.build())?;
            producer.create().await?;
            Ok(producer)
        }

        type Messages = Receiver<StreamMessage>;

        pub async fn subscriber(
            client: &DanubeClient,
            topic: &str,
            subscription: &str,
            name: &str,
            kind: SubType,
        ) -> Result<(Consumer, Messages)> {
            let builder = client
                .new_consumer()
                .with_topic(topic)
                .with_consumer_name(name)
                .with_subscription(subscription)
                .with_subscription_type(kind);
            let mut consumer = $made(builder.build())?;
            consumer.subscribe().await?;
            let messages = consumer.receive().await?;
            Ok((consumer, messages))
        }

        pub async fn consumer(
            client: &DanubeClient,
            topic: &str,
            name: &str,
            kind: SubType,
        ) -> Result<(Consumer, Messages)> {
            subscriber(client, topic, "subscription", name, kind).await
        }

        /// A consumer that may have to wait until its predecessor's place is free.
        pub async fn successor(
            client: &DanubeClient,
            topic: &str,
            name: &str,
        ) -> Result<(Consumer, Messages)> {
            let mut last = None;
            for _ in 0..100 {
                match consumer(client, topic, name, SubType::Exclusive).await {
                    Ok(found) => return Ok(found),
                    Err(error) => last = Some(error),
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            Err(last.context("never tried")?.context("the place is not given free"))
        }

        pub async fn next(messages: &mut Messages) -> Result<StreamMessage> {
            timeout(SOON, messages.recv()).await.context("no message comes")?.context("the stream ended")
        }

        pub async fn take(
            consumer: &mut Consumer,
            messages: &mut Messages,
            count: usize,
        ) -> Result<Vec<String>> {
            let mut taken = Vec::new();
            for at in 0..count {
                let message = next(messages).await.with_context(|| format!("message {at} of {count}"))?;
                consumer.ack(&message).await?;
                taken.push(String::from_utf8(message.payload.to_vec())?);
            }
            Ok(taken)
        }

        pub async fn send(producer: &Producer, texts: &[String]) -> Result<()> {
            for text in texts {
                producer.send(text.clone().into_bytes(), None).await?;
            }
            Ok(())
        }

        /// Everything that both versions can do, each step at the next broker.
        pub async fn common(urls: &[&str], run: &str) -> Result<()> {
            let mut clients = Vec::new();
            for url in urls {
                clients.push(connect(url).await?);
            }
            let mut clients = clients.iter().cycle();
            let mut next = || clients.next().context("no url");
            let topic = |name: &str| format!("/default/{name}-{run}");
            step("best effort", best_effort(next()?, &topic("fast"))).await?;
            step("reliable", reliable(next()?, &topic("reliable"))).await?;
            step("resumes at the cursor", resumes(next()?, &topic("resumes"))).await?;
            step("exclusive refuses a second consumer", exclusive(next()?, &topic("exclusive"))).await?;
            step("shared", shared(next()?, &topic("shared"), SubType::Shared)).await?;
            step("failover", failover(next()?, &topic("failover"))).await?;
            step("every subscription gets everything", fan_out(next()?, &topic("fan"))).await?;
            step("partitions, reliable", partitions(next()?, &topic("parts"), true)).await?;
            step("partitions, best effort", partitions(next()?, &topic("fast-parts"), false)).await?;
            step("a name that is used again", same_name(next()?, &topic("again"))).await?;
            step("receives again", receives_again(next()?, &topic("twice"))).await?;
            step("large message", large(next()?, &topic("large"))).await?;
            step("refusals", refusals(next()?, &topic("refusals"))).await?;
            step("clients at all brokers", everywhere(urls, &topic("everywhere"))).await?;
            Ok(())
        }

        async fn best_effort(client: &DanubeClient, topic: &str) -> Result<()> {
            let builder = client.new_producer().with_topic(topic).with_name("producer");
            let mut producer = $made(builder.build())?;
            producer.create().await?;
            let (mut consumer, mut messages) = consumer(client, topic, "one", SubType::Exclusive).await?;
            // One at a time: a best-effort topic may drop what a consumer does not take in time.
            for text in numbers(0..20) {
                send(&producer, std::slice::from_ref(&text)).await?;
                ensure!(take(&mut consumer, &mut messages, 1).await? == [text]);
            }
            Ok(())
        }

        async fn reliable(client: &DanubeClient, topic: &str) -> Result<()> {
            let producer = producer(client, topic).await?;
            let (mut consumer, mut messages) = consumer(client, topic, "one", SubType::Exclusive).await?;
            let attributes: HashMap<String, String> = [("colour".to_owned(), "blue".to_owned())].into();
            let sequence = producer.send(b"first".to_vec(), Some(attributes)).await?;
            let message = next(&mut messages).await?;
            ensure!(&message.payload[..] == b"first" && message.attributes["colour"] == "blue");
            ensure!(message.producer_name == "producer" && message.msg_id.topic_name == topic);
            ensure!(message.msg_id.topic_offset == 0 && message.publish_time > 0);
            ensure!(!message.msg_id.broker_addr.is_empty(), "the broker is named");
            consumer.ack(&message).await?;
            let again = producer.send(b"second".to_vec(), None).await?;
            ensure!(again > sequence, "sequence numbers of a producer grow: {sequence} {again}");
            ensure!(take(&mut consumer, &mut messages, 1).await? == ["second"]);
            send(&producer, &numbers(0..200)).await?;
            ensure!(take(&mut consumer, &mut messages, 200).await? == numbers(0..200));
            Ok(())
        }

        async fn resumes(client: &DanubeClient, topic: &str) -> Result<()> {
            let producer = producer(client, topic).await?;
            let (mut first, mut messages) = consumer(client, topic, "one", SubType::Exclusive).await?;
            send(&producer, &numbers(0..10)).await?;
            ensure!(take(&mut first, &mut messages, 4).await? == numbers(0..4));
            first.close().await;
            drop((first, messages));
            send(&producer, &numbers(10..12)).await?;
            let (mut second, mut messages) = successor(client, topic, "two").await?;
            ensure!(take(&mut second, &mut messages, 8).await? == numbers(4..12));
            Ok(())
        }

        async fn exclusive(client: &DanubeClient, topic: &str) -> Result<()> {
            let _producer = producer(client, topic).await?;
            let _first = consumer(client, topic, "one", SubType::Exclusive).await?;
            let second = consumer(client, topic, "two", SubType::Exclusive).await;
            ensure!(second.is_err(), "a second consumer");
            Ok(())
        }

        pub async fn shared(client: &DanubeClient, topic: &str, kind: SubType) -> Result<()> {
            let producer = producer(client, topic).await?;
            let (mut one, mut of_one) = consumer(client, topic, "one", kind.clone()).await?;
            let (mut two, mut of_two) = consumer(client, topic, "two", kind).await?;
            // The stream of a consumer begins some time after `receive` has returned.
            let mut attached = [false, false];
            let mut sent = 0;
            while attached != [true, true] {
                sent += 1;
                ensure!(sent < 1_000, "one of two consumers gets nothing: {attached:?}");
                send(&producer, &["warm".to_owned()]).await?;
                let (at, consumer, message) = tokio::select! {
                    message = next(&mut of_one) => (0, &mut one, message?),
                    message = next(&mut of_two) => (1, &mut two, message?),
                };
                consumer.ack(&message).await?;
                attached[at] = true;
            }
            send(&producer, &numbers(0..20)).await?;
            let mut all = BTreeSet::new();
            let mut shares = [0, 0];
            while all.len() < 20 {
                let (at, consumer, message) = tokio::select! {
                    message = next(&mut of_one) => (0, &mut one, message?),
                    message = next(&mut of_two) => (1, &mut two, message?),
                };
                consumer.ack(&message).await?;
                ensure!(all.insert(message.payload.to_vec()), "a message comes twice");
                shares[at] += 1;
            }
            ensure!(shares.iter().all(|share| *share >= 5), "both get their share: {shares:?}");
            Ok(())
        }

        async fn failover(client: &DanubeClient, topic: &str) -> Result<()> {
            let producer = producer(client, topic).await?;
            let (mut one, mut of_one) = consumer(client, topic, "one", SubType::FailOver).await?;
            // The first consumer with a stream is the active one, and a stream begins some time after `receive` has
            // returned.
            send(&producer, &["first".to_owned()]).await?;
            ensure!(take(&mut one, &mut of_one, 1).await? == ["first"]);
            let (mut two, mut of_two) = consumer(client, topic, "two", SubType::FailOver).await?;
            send(&producer, &numbers(0..5)).await?;
            ensure!(take(&mut one, &mut of_one, 5).await? == numbers(0..5));
            ensure!(timeout(NOTHING, of_two.recv()).await.is_err(), "the standby gets nothing");
            one.close().await;
            drop((one, of_one));
            send(&producer, &numbers(5..10)).await?;
            ensure!(take(&mut two, &mut of_two, 5).await? == numbers(5..10));
            Ok(())
        }

        async fn fan_out(client: &DanubeClient, topic: &str) -> Result<()> {
            let producer = producer(client, topic).await?;
            let mut subscribers = Vec::new();
            for name in ["a", "b", "c"] {
                subscribers.push(subscriber(client, topic, name, name, SubType::Exclusive).await?);
            }
            send(&producer, &numbers(0..10)).await?;
            for (consumer, messages) in &mut subscribers {
                ensure!(take(consumer, messages, 10).await? == numbers(0..10));
            }
            Ok(())
        }

        async fn partitions(client: &DanubeClient, topic: &str, reliable: bool) -> Result<()> {
            let builder = client.new_producer().with_topic(topic).with_name("producer").with_partitions(3);
            let builder = if reliable { builder.with_reliable_dispatch() } else { builder };
            let mut producer = $made(builder.build())?;
            producer.create().await?;
            let (mut consumer, mut messages) = consumer(client, topic, "one", SubType::Exclusive).await?;
            let mut found = BTreeSet::new();
            let mut all = BTreeSet::new();
            for text in numbers(0..30) {
                send(&producer, std::slice::from_ref(&text)).await?;
                let message = next(&mut messages).await?;
                consumer.ack(&message).await?;
                found.insert(message.msg_id.topic_name.clone());
                all.insert(String::from_utf8(message.payload.to_vec())?);
            }
            let expected: BTreeSet<String> = (0..3).map(|number| format!("{topic}-part-{number}")).collect();
            ensure!(all.len() == 30 && found == expected, "{found:?}");
            Ok(())
        }

        /// A producer and a consumer that come back under their names while the broker still knows them.
        async fn same_name(client: &DanubeClient, topic: &str) -> Result<()> {
            let first = producer(client, topic).await?;
            let (mut one, mut of_one) = consumer(client, topic, "one", SubType::Exclusive).await?;
            send(&first, &numbers(0..3)).await?;
            ensure!(take(&mut one, &mut of_one, 3).await? == numbers(0..3));
            drop((first, one, of_one));
            let second = producer(client, topic).await?;
            let (mut one, mut of_one) = successor(client, topic, "one").await?;
            send(&second, &numbers(3..6)).await?;
            let taken = take(&mut one, &mut of_one, 3).await?;
            ensure!(taken == numbers(3..6), "{taken:?}");
            Ok(())
        }

        /// A consumer that asks for its messages a second time.
        async fn receives_again(client: &DanubeClient, topic: &str) -> Result<()> {
            let producer = producer(client, topic).await?;
            let (mut one, first) = consumer(client, topic, "one", SubType::Exclusive).await?;
            drop(first);
            let mut messages = one.receive().await?;
            send(&producer, &numbers(0..3)).await?;
            let mut taken = BTreeSet::new();
            // What the first stream was given comes again.
            while taken.len() < 3 {
                taken.extend(take(&mut one, &mut messages, 1).await?);
            }
            Ok(())
        }

        async fn large(client: &DanubeClient, topic: &str) -> Result<()> {
            let producer = producer(client, topic).await?;
            let (mut consumer, mut messages) = consumer(client, topic, "one", SubType::Exclusive).await?;
            let large = "x".repeat(3 << 20);
            producer.send(large.clone().into_bytes(), None).await?;
            ensure!(take(&mut consumer, &mut messages, 1).await? == [large]);
            Ok(())
        }

        async fn refusals(client: &DanubeClient, topic: &str) -> Result<()> {
            let mut wrong =
                $made(client.new_producer().with_topic("not_a_topic").with_name("producer").build())?;
            ensure!(wrong.create().await.is_err(), "a name without a namespace");
            let missing = consumer(client, topic, "one", SubType::Shared).await;
            ensure!(missing.is_err(), "consumers create no topics");
            let _reliable = producer(client, topic).await?;
            let mut other = $made(client.new_producer().with_topic(topic).with_name("other").build())?;
            ensure!(other.create().await.is_err(), "another delivery");
            let base = client.new_producer().with_topic(topic).with_name("parts").with_reliable_dispatch();
            let mut base = $made(base.with_partitions(2).build())?;
            ensure!(base.create().await.is_err(), "partitions below a plain topic");
            Ok(())
        }

        /// One topic: a producer and a consumer at each broker.
        async fn everywhere(urls: &[&str], topic: &str) -> Result<()> {
            let mut producers = Vec::new();
            let mut consumers = Vec::new();
            for (at, url) in urls.iter().enumerate() {
                let client = connect(url).await?;
                producers.push(producer(&client, topic).await?);
                let name = format!("subscription-{at}");
                consumers.push(subscriber(&client, topic, &name, "one", SubType::Exclusive).await?);
            }
            for (at, producer) in producers.iter().enumerate() {
                send(producer, &numbers(at * 5..at * 5 + 5)).await?;
            }
            for (consumer, messages) in &mut consumers {
                ensure!(take(consumer, messages, 5 * urls.len()).await? == numbers(0..5 * urls.len()));
            }
            Ok(())
        }

        async fn remade(url: &str, topic: &str) -> Result<Producer> {
            producer(&connect(url).await?, topic).await
        }

        /// Sends and receives while brokers come and go. Each number arrives, and in order, apart from repetitions.
        pub async fn flow(url: &str, topic: &str, count: usize) -> Result<()> {
            let client = connect(url).await?;
            let mut producer = producer(&client, topic).await?;
            let (mut consumer, mut messages) = consumer(&client, topic, "one", SubType::Exclusive).await?;
            println!("flowing");
            let sending = async {
                for text in numbers(0..count) {
                    let until = tokio::time::Instant::now() + SOON;
                    // The client follows a topic that moved by itself. It does not get over the death of the broker
                    // that it talks to, which is also the one that it asks where the topic is: begin anew.
                    while let Err(error) = producer.send(text.clone().into_bytes(), None).await {
                        eprintln!("send of {text}: {error}");
                        ensure!(tokio::time::Instant::now() < until, "sending {text} does not succeed");
                        tokio::time::sleep(Duration::from_millis(200)).await;
                        match remade(url, topic).await {
                            Ok(again) => producer = again,
                            Err(error) => eprintln!("no producer: {error}"),
                        }
                    }
                    if text == "20" {
                        println!("under way");
                    }
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                Ok::<_, anyhow::Error>(())
            };
            let receiving = async {
                let mut expected = 0;
                let mut repeated = 0;
                while expected < count {
                    let received = timeout(SOON, messages.recv()).await;
                    let received = received.with_context(|| format!("message {expected} does not come"))?;
                    let Some(message) = received else {
                        // The old client gives up a consumer after it has subscribed again.
                        eprintln!("the stream ended at {expected}");
                        let client = connect(url).await?;
                        (consumer, messages) = successor(&client, topic, "one").await?;
                        continue;
                    };
                    let number: usize = std::str::from_utf8(&message.payload)?.parse()?;
                    ensure!(number <= expected, "{number} comes before {expected}");
                    if number == expected {
                        expected += 1;
                    } else {
                        repeated += 1;
                    }
                    // An acknowledgment that a dead broker did not take is given again with the message.
                    if let Err(error) = consumer.ack(&message).await {
                        eprintln!("ack of {number}: {error}");
                    }
                }
                println!("repeated: {repeated}");
                Ok::<_, anyhow::Error>(())
            };
            tokio::try_join!(sending, receiving)?;
            Ok(())
        }
    };
}
