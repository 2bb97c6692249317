use super::*;
use crate::outcome::RunError;

const MIB: u64 = 1 << 20;

/// 70 MiB for large isolates, 10 for small ones, which have up to 4.
fn memory() -> Arc<GuestMemory> {
    GuestMemory::new(80 * MIB, || false)
}

/// A function whose invocations usually need so much.
fn function(mib: u64) -> Arc<FunctionMemory> {
    let function = FunctionMemory::default();
    function.learn(mib * MIB);
    Arc::new(function)
}

fn reserve(memory: &Arc<GuestMemory>, function: &Arc<FunctionMemory>) -> PendingReservation {
    memory.reserve(function, 64 * MIB)
}

fn granted(waiting: &mut PendingReservation) -> Option<Reservation> {
    waiting.granted.try_recv().ok()
}

#[test]
fn what_is_reserved_comes_back() {
    let (memory, large) = (memory(), function(30));
    let first = memory.try_reserve(&large, 64 * MIB).unwrap();
    let second = memory.try_reserve(&large, 64 * MIB).unwrap();
    assert!(memory.try_reserve(&large, 64 * MIB).is_none());
    assert_eq!(memory.reading().used_bytes, 60 * MIB);
    drop((first, second));
    assert_eq!(memory.reading().used_bytes, 0);
    assert_eq!(large.held.load(Relaxed), 0);
}

#[test]
fn the_first_invocation_reserves_its_limit_and_later_ones_what_was_needed() {
    let (memory, function) = (memory(), Arc::<FunctionMemory>::default());
    let mut first = memory.try_reserve(&function, 6 * MIB).unwrap();
    assert_eq!(memory.reading().used_bytes, 6 * MIB + ISOLATE_BYTES);
    assert!(first.cover(2 << 20));
    drop(first);
    let next = memory.try_reserve(&function, 6 * MIB).unwrap();
    assert_eq!(memory.reading().used_bytes, 2 * MIB + ISOLATE_BYTES);
    drop(next);
    // Never more than an eighth of it, so that others can begin as well.
    let huge = Arc::<FunctionMemory>::default();
    let _first = memory.try_reserve(&huge, 4 << 30).unwrap();
    assert_eq!(memory.reading().used_bytes, 70 * MIB / 8);
}

#[test]
fn growth_is_charged_and_refused_where_nothing_is_left() {
    let (memory, one, other) = (memory(), function(1), function(40));
    let _other = memory.try_reserve(&other, 64 * MIB).unwrap();
    let mut grows = memory.try_reserve(&one, 64 * MIB).unwrap();
    assert!(grows.cover(20 << 20) && grows.refusal().is_none());
    assert!(!grows.cover(40 << 20));
    assert_eq!(grows.refusal(), Some(RunError::NodeOutOfMemory { max_bytes: 80 * MIB }));
    drop(grows);
    assert_eq!(memory.reading().refused, 1);
    // The next one waits for as much.
    assert!(memory.try_reserve(&one, 64 * MIB).is_none());
    // More than the whole budget is the function's own fault.
    let mut grows = memory.empty(&one);
    assert!(!grows.cover(90 << 20));
    assert!(matches!(grows.refusal(), Some(RunError::OutOfMemory { .. })));
}

#[test]
fn small_ones_pass_while_large_ones_wait_and_do_not_starve_them() {
    let (memory, running, large) = (memory(), function(50), function(65));
    let running = memory.try_reserve(&running, 64 * MIB).unwrap();
    let mut waits = memory.reserve(&large, 128 * MIB);
    let pass = |_| granted(&mut reserve(&memory, &function(3))).expect("small ones fit");
    let in_lane: Vec<_> = (0..3).map(pass).collect();
    let in_main: Vec<_> = (0..3).map(pass).collect();
    assert!(granted(&mut waits).is_none());
    // The large one has waited for long: others get the lane and nothing else.
    memory.queues.lock().functions[0].requests[0].since -= PATIENCE;
    drop(running);
    assert!(granted(&mut waits).is_none(), "small ones hold 9 MiB");
    let mut late: Vec<_> = (0..2).map(|_| reserve(&memory, &function(3))).collect();
    assert!(late.iter_mut().all(|waiting| granted(waiting).is_none()));
    drop(in_lane);
    let late: Vec<_> = late.iter_mut().map(|waiting| granted(waiting).expect("the lane is free")).collect();
    drop(in_main);
    let large = granted(&mut waits).expect("it has its turn");
    drop((late, large));
    assert_eq!((memory.reading().used_bytes, memory.reading().waiting), (0, 0));
}

#[test]
fn however_many_invocations_a_function_has_another_one_finds_room() {
    let (memory, spins) = (memory(), function(3));
    let held: Vec<_> = std::iter::from_fn(|| memory.try_reserve(&spins, 64 * MIB)).collect();
    assert!(held.len() >= 20, "{}", held.len());
    let mut waits = reserve(&memory, &spins);
    assert!(granted(&mut waits).is_none());
    for other in [function(3), function(3), function(3)] {
        assert!(granted(&mut reserve(&memory, &other)).is_some());
    }
}

#[test]
fn memory_goes_to_the_function_that_holds_least() {
    let (memory, greedy, modest) = (memory(), function(30), function(30));
    let mut running: Vec<_> = (0..2).map(|_| memory.try_reserve(&greedy, 64 * MIB).unwrap()).collect();
    let mut greedy_waits: Vec<_> = (0..50).map(|_| reserve(&memory, &greedy)).collect();
    let mut modest_waits = reserve(&memory, &modest);
    running.pop();
    let modest_runs = granted(&mut modest_waits);
    assert!(modest_runs.is_some());
    assert!(greedy_waits.iter_mut().all(|waiting| granted(waiting).is_none()));
}

#[test]
fn who_gives_up_leaves_its_place() {
    let (memory, large) = (memory(), function(60));
    let running = memory.try_reserve(&large, 64 * MIB).unwrap();
    let (gone, mut stays) = (reserve(&memory, &large), reserve(&memory, &large));
    drop(gone);
    assert_eq!(memory.reading().waiting, 1);
    drop(running);
    let granted_now = granted(&mut stays).unwrap();
    // Granted, but dropped before it was taken.
    let late = reserve(&memory, &large);
    drop(granted_now);
    drop(late);
    assert_eq!((memory.reading().used_bytes, memory.reading().waiting), (0, 0));
}

#[test]
fn one_that_cannot_fit_while_memory_is_withheld_keeps_nothing_from_others() {
    let (memory, large) = (memory(), function(60));
    memory.withhold(30 * MIB);
    let mut waits = memory.reserve(&large, 128 * MIB);
    memory.queues.lock().functions[0].requests[0].since -= PATIENCE;
    // More than the lane takes.
    let other = granted(&mut reserve(&memory, &function(6)));
    assert!(other.is_some(), "40 MiB are given out");
    assert!(granted(&mut waits).is_none());
    drop(other);
    memory.withhold(0);
    assert!(granted(&mut waits).is_some());
}

#[test]
fn what_is_withheld_is_given_out_later() {
    let (memory, large) = (memory(), function(30));
    memory.withhold(50 * MIB);
    assert!(memory.try_reserve(&large, 64 * MIB).is_none());
    let mut waits = reserve(&memory, &large);
    memory.withhold(0);
    assert!(granted(&mut waits).is_some());
    // However short the machine is, something runs.
    memory.withhold(u64::MAX);
    assert!(memory.try_reserve(&function(8), 64 * MIB).is_some());
}
