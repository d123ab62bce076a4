//! A chat server's inner post office: topics with wildcards, consumers that share the work, and a
//! burst delivered as a batch.
//!
//! Topics look like `rooms/42/message`. Whoever listens has a queue of its own; the tree only finds
//! who gets what.
//!
//! ```text
//! cargo run -p pubsub --example topics
//! ```

use std::sync::mpsc::{Receiver, Sender, channel};

use pubsub::{Event, Interest, Path, PubSub, Subscription};

/// What is published: where, and what.
#[derive(Clone, Debug)]
struct Post {
    topic: String,
    text: String,
}

impl Post {
    fn new(topic: &str, text: &str) -> Self {
        Post {
            topic: topic.to_owned(),
            text: text.to_owned(),
        }
    }
}

impl Event<String> for Post {
    type Key<'a> = &'a str;

    fn key(&self, depth: usize) -> Option<&str> {
        self.topic.split('/').nth(depth)
    }

    /// Members of a group with names share by topic: one of them gets all of a room.
    fn shard_hash(&self) -> Option<u64> {
        Some(pubsub::stable_hash(&self.topic))
    }
}

type Office = PubSub<String, Sender<Post>>;

/// `rooms/+/message`, as one would write it in a configuration: `+` is any key, and a pattern takes
/// everything below where it ends.
fn pattern(text: &str) -> Path<String> {
    let segments = text.split('/').filter(|segment| !segment.is_empty());
    segments.fold(Path::root(), |path, segment| match segment {
        "+" => path.any(),
        key => path.key(key),
    })
}

/// A listener: the subscription lives as long as it does.
struct Listener {
    name: &'static str,
    inbox: Receiver<Post>,
    _subscription: Subscription<String, Sender<Post>>,
}

impl Listener {
    fn new(office: &Office, name: &'static str, interest: Interest<String>) -> Self {
        let (sender, inbox) = channel();
        Listener {
            name,
            inbox,
            _subscription: office.subscribe(sender, interest),
        }
    }

    fn read(&self) -> usize {
        println!("{}:", self.name);
        let posts: Vec<Post> = self.inbox.try_iter().collect();
        for post in &posts {
            println!("    {:<22} {}", post.topic, post.text);
        }
        posts.len()
    }
}

fn main() {
    let office = Office::new();

    let audit = Listener::new(&office, "audit, everything", Interest::new([pattern("")]));
    let room = Listener::new(&office, "room 42", Interest::new([pattern("rooms/42")]));
    // Two patterns that overlap: a message in room 42 still comes once.
    let both = [pattern("rooms/+/message"), pattern("rooms/42")];
    let screen = Listener::new(&office, "screen in the hall", Interest::new(both));
    // Three indexers share all messages; each room has one of them, whichever process publishes.
    let indexers = ["indexer-a", "indexer-b", "indexer-c"].map(|name| {
        let messages = Interest::new([pattern("rooms/+/message")]);
        Listener::new(&office, name, messages.shard("indexers").name(name))
    });

    for post in [
        Post::new("rooms/42/message", "hello"),
        Post::new("rooms/42/joined", "Ada"),
        Post::new("rooms/7/message", "anybody here?"),
        Post::new("system/restart", "at midnight"),
    ] {
        office.publish(&post, |to| drop(to.send(post.clone())));
    }

    // A burst: one look at the tree, and one call per listener however many posts are for it.
    let burst: Vec<Post> = (0..6)
        .map(|number| Post::new(&format!("rooms/{number}/message"), "lunch?"))
        .collect();
    let mut publisher = office.publisher();
    let published = publisher.publish_batch(burst.iter(), |to, selection| {
        for index in selection.indices() {
            drop(to.send(burst[index].clone()));
        }
    });
    println!(
        "the burst of {} posts took {} calls\n",
        burst.len(),
        published.delivered
    );

    assert_eq!(audit.read(), 10);
    assert_eq!(room.read(), 2);
    assert_eq!(screen.read(), 9);
    let indexed: usize = indexers.iter().map(Listener::read).sum();
    assert_eq!(indexed, 8, "each message is indexed once");
}
