//! Producers take turns with everybody else on their thread.
//!
//! A runtime polls the tasks that are ready one after the other. When a hundred producers send as
//! fast as they can, each of them has a whole window of messages ready at any time, and a
//! subscriber's stream would get to write one batch for every hundred windows: all but a percent of
//! what is taken in would be overwritten in the rings. So the producers of a thread together take
//! [`ROUND`] bytes, and then leave the thread to everybody else who is ready. What they can't
//! deliver meanwhile waits in their own windows. Nobody waits for a subscriber: one that is stuck
//! isn't ready.

use std::{
    cell::{Cell, RefCell},
    task::{Context, Poll, Waker},
};

/// What producers take before the others have their turn, in bytes.
const ROUND: isize = 64 * 1024;

thread_local! {
    /// What producers may still take in this round. Negative when the last message was larger than
    /// what was left, which counts against the next rounds.
    static LEFT: Cell<isize> = const { Cell::new(ROUND) };
    /// Who wants to go on in the next round, in the order of asking.
    static WAITING: RefCell<Vec<Waker>> = const { RefCell::new(Vec::new()) };
}

/// Waits until producers have a turn. To be asked before each message.
pub(crate) fn poll_turn(context: &mut Context<'_>) -> Poll<()> {
    if LEFT.get() > 0 {
        return Poll::Ready(());
    }
    WAITING.with_borrow_mut(|waiting| waiting.push(context.waker().clone()));
    Poll::Pending
}

/// Counts a message of so many bytes. To be called within the runtime that has this thread to itself.
pub(crate) fn took(bytes: usize) {
    let before = LEFT.get();
    let left = before.saturating_sub_unsigned(bytes);
    LEFT.set(left);
    if before > 0 && left <= 0 {
        tokio::spawn(next_round());
    }
}

async fn next_round() {
    while LEFT.get() <= 0 {
        // comes back when nobody else is ready, or has been behind everybody for long
        tokio::task::yield_now().await;
        LEFT.set(LEFT.get() + ROUND);
    }
    let mut waiting = WAITING.take();
    if !waiting.is_empty() {
        // the first is who took the last of this round: it asked again at once
        waiting.rotate_left(1);
    }
    waiting.into_iter().for_each(Waker::wake);
}

#[cfg(test)]
mod tests {
    use std::{cell::RefCell, future::poll_fn, rc::Rc};

    use tokio::task::{AbortHandle, LocalSet, spawn_local, yield_now};

    use super::*;

    /// Large enough to see, small enough to share a round.
    const MESSAGE: usize = ROUND as usize / 4;

    /// Somebody with so many things to do, one a turn.
    async fn busy(turns: usize) {
        for _ in 0..turns {
            yield_now().await;
        }
    }

    /// Producers at full speed, and how many messages each has sent so far.
    fn flood(producers: usize) -> (Rc<RefCell<Vec<usize>>>, Vec<AbortHandle>) {
        let sent = Rc::new(RefCell::new(vec![0; producers]));
        let tasks = (0..producers).map(|producer| {
            let sent = sent.clone();
            let task = spawn_local(async move {
                loop {
                    poll_fn(poll_turn).await;
                    sent.borrow_mut()[producer] += 1;
                    took(MESSAGE);
                }
            });
            task.abort_handle()
        });
        let tasks = tasks.collect();
        (sent, tasks)
    }

    #[tokio::test]
    async fn others_have_their_turn_whatever_the_number_of_producers() {
        for producers in [1, 2, 3, 10, 100] {
            let local = LocalSet::new();
            let sent = local
                .run_until(async {
                    let (sent, tasks) = flood(producers);
                    spawn_local(busy(1_000)).await.unwrap();
                    tasks.iter().for_each(AbortHandle::abort);
                    sent.take().iter().sum::<usize>()
                })
                .await;
            // four messages a round, which is a turn of somebody else, or two
            assert!(
                (2_000..=4 * 1_001).contains(&sent),
                "{producers} producers sent {sent} messages in 1,000 turns of somebody else"
            );
        }
    }

    #[tokio::test]
    async fn producers_share_evenly() {
        for producers in [2, 3, 10, 100] {
            let local = LocalSet::new();
            let sent = local
                .run_until(async {
                    let (sent, tasks) = flood(producers);
                    while sent.borrow().iter().sum::<usize>() < 100 * producers {
                        yield_now().await;
                    }
                    tasks.iter().for_each(AbortHandle::abort);
                    sent.take()
                })
                .await;
            let (least, most) = (sent.iter().min().unwrap(), sent.iter().max().unwrap());
            assert!(most - least <= 8, "{producers} producers sent {sent:?}");
        }
    }

    #[tokio::test]
    async fn who_leaves_holds_nobody_up() {
        let local = LocalSet::new();
        local
            .run_until(async {
                let (sent, tasks) = flood(3);
                busy(10).await;
                tasks[0].abort();
                tasks[1].abort();
                let goal = sent.borrow()[2] + 100;
                while sent.borrow()[2] < goal {
                    yield_now().await;
                }
                tasks[2].abort();
            })
            .await;
    }

    /// It is as if it had been many small ones.
    #[tokio::test]
    async fn a_huge_message_takes_its_rounds() {
        let local = LocalSet::new();
        local
            .run_until(async {
                let turns = Rc::new(Cell::new(0));
                let counted = turns.clone();
                let others = spawn_local(async move {
                    loop {
                        counted.set(counted.get() + 1);
                        yield_now().await;
                    }
                });
                took(10 * ROUND as usize);
                poll_fn(poll_turn).await;
                others.abort();
                assert!((9..=12).contains(&turns.get()), "{} turns", turns.get());
            })
            .await;
    }
}
