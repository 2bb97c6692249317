//! Maintenance: delayed wills, ends of sessions, expired messages, purges, and the figures under `$SYS/broker/`.

use std::future::pending;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::time::sleep_until;

use crate::router::Router;
use crate::sessions::{Purging, SessionTable};
use crate::stats::BrokerStats;
use crate::sys_topics::SysTopics;
use crate::wal::{Progress, Wal};

/// Time between two batches of purged or expired messages, in which other tasks of the runtime have their turn.
const BATCH_PAUSE: Duration = Duration::from_millis(20);
/// Retained messages that are checked for their expiry at a time.
const RETAINED_BATCH: usize = 2048;
/// Time between two such batches.
const RETAINED_PAUSE: Duration = Duration::from_millis(100);
/// Time between two walks over all retained messages.
const RETAINED_INTERVAL: Duration = Duration::from_secs(30);
/// Maximum time to the next walk while the store is full; also the interval between two checks of the messages that wait
/// for sessions.
const SHORT_INTERVAL: Duration = Duration::from_secs(3);
/// Expired messages for one session that are deleted at a time.
const EXPIRED_BATCH: usize = 512;

/// Runs until it is dropped; nothing is lost then. One for each broker.
pub(crate) async fn run(
    router: &Router,
    sessions: &SessionTable,
    wal: &std::sync::Arc<Wal>,
    mut sys_topics: SysTopics,
    stats: impl Fn() -> BrokerStats,
) {
    let mut progress = wal.watch();
    let (mut retained_at, mut retained_to) = (Instant::now() + RETAINED_INTERVAL, None);
    let mut queued_at = Instant::now() + SHORT_INTERVAL;
    loop {
        let now = Instant::now();
        sessions.fire_due(now);
        let stored = *progress.borrow_and_update();
        let purging = sessions.purges().step(stored);
        sys_topics.publish_due(router, &stats, now);
        if queued_at <= now {
            let pause =
                if sessions.expire_queued(EXPIRED_BATCH, now) { BATCH_PAUSE } else { SHORT_INTERVAL };
            queued_at = now + pause;
            if wal.is_full() {
                retained_at = retained_at.min(now + SHORT_INTERVAL);
            }
        }
        if retained_at <= now {
            retained_to = router.retained().expire(retained_to.as_ref(), RETAINED_BATCH, Instant::now());
            retained_at = now + if retained_to.is_some() { RETAINED_PAUSE } else { RETAINED_INTERVAL };
        }
        let purge_at = (purging == Purging::More).then(|| Instant::now() + BATCH_PAUSE);
        let due = [sessions.next_due(), sys_topics.due(), Some(retained_at), purge_at];
        let due = due.into_iter().flatten().fold(queued_at, Instant::min);
        tokio::select! {
            () = sessions.due_changed() => {}
            () = store_progress(&mut progress, purging) => {}
            () = sleep_until(due.into()) => {}
        }
    }
}

/// Completes with the next commit of the store, if a purge waits for it.
async fn store_progress(progress: &mut watch::Receiver<Progress>, purging: Purging) {
    match purging {
        Purging::AwaitsStore if progress.changed().await.is_ok() => {}
        _ => pending().await,
    }
}
