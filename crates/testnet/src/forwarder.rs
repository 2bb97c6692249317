//! The thread that moves packets between the devices of all hosts.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use rustix::process::setpriority_process;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use tun_rs::SyncDevice;

use crate::switch::Switch;

/// The largest packet: the MTU of the devices.
pub(crate) const MTU_BYTES: u16 = 1500;
/// Packets that are taken from one host before it is the turn of the next.
const MAX_BATCH: usize = 64;
/// Above all hosts; 0 is usual and -20 the highest.
const PRIORITY: i32 = -10;
/// Numbers of descriptors that are no host's.
const TIMER: u64 = u64::MAX;
const END: u64 = u64::MAX - 1;

pub(crate) struct Forwarder {
    switch: Arc<Mutex<Switch>>,
    is_ending: Arc<AtomicBool>,
    /// Wakes the thread.
    end: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl Forwarder {
    /// `devices` belong to the hosts of `switch`, in their order, and do not block.
    pub(crate) fn start(switch: Switch, devices: Vec<SyncDevice>) -> io::Result<Self> {
        let switch = Arc::new(Mutex::new(switch));
        let is_ending = Arc::new(AtomicBool::new(false));
        let end = eventfd(0, EventfdFlags::CLOEXEC)?;
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC)?;
        let add = |descriptor: BorrowedFd<'_>, number| {
            epoll::add(&epoll, descriptor, EventData::new_u64(number), EventFlags::IN)
        };
        add(timer.as_fd(), TIMER)?;
        add(end.as_fd(), END)?;
        for (number, device) in devices.iter().enumerate() {
            add(device.as_fd(), number as u64)?;
        }
        let work = Work { switch: switch.clone(), devices, epoll, timer };
        let ending = is_ending.clone();
        let thread =
            std::thread::Builder::new().name("testnet-switch".into()).spawn(move || work.run(&ending))?;
        Ok(Self { switch, is_ending, end, thread: Some(thread) })
    }

    pub(crate) fn switch(&self) -> MutexGuard<'_, Switch> {
        lock(&self.switch)
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        self.is_ending.store(true, Relaxed);
        let _ = rustix::io::write(&self.end, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn lock(switch: &Mutex<Switch>) -> MutexGuard<'_, Switch> {
    switch.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Work {
    switch: Arc<Mutex<Switch>>,
    devices: Vec<SyncDevice>,
    epoll: OwnedFd,
    timer: OwnedFd,
}

impl Work {
    fn run(&self, is_ending: &AtomicBool) {
        // Hosts that compute must not delay the network. Without the right to it the times are less exact.
        let _ = setpriority_process(None, PRIORITY);
        let mut events = Vec::with_capacity(MAX_BATCH);
        let mut delivered = Vec::new();
        let mut armed_for = None;
        while !is_ending.load(Relaxed) {
            events.clear();
            match epoll::wait(&self.epoll, spare_capacity(&mut events), None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => panic!("epoll_wait: {error}"),
            }
            let mut switch = lock(&self.switch);
            for event in &events {
                match event.data.u64() {
                    TIMER | END => {}
                    host => self.take_from(host as usize, &mut switch),
                }
            }
            switch.deliver(Instant::now(), &mut delivered);
            for (host, packet) in delivered.drain(..) {
                // A device that is down, or whose host has ended, loses it.
                let _ = self.devices[host].send(&packet);
                switch.give_back(packet);
            }
            let next = switch.next_arrival();
            drop(switch);
            if next != armed_for || next.is_some_and(|at| at <= Instant::now()) {
                self.arm(next);
                armed_for = next;
            }
        }
    }

    fn take_from(&self, host: usize, switch: &mut Switch) {
        for _ in 0..MAX_BATCH {
            let mut packet = switch.buffer(usize::from(MTU_BYTES));
            let Ok(bytes) = self.devices[host].recv(&mut packet) else {
                return switch.give_back(packet);
            };
            packet.truncate(bytes);
            switch.accept(host, packet, Instant::now());
        }
    }

    /// Setting the timer also clears what it has counted, so that nobody has to read it.
    fn arm(&self, next: Option<Instant>) {
        let it_value = next.map_or(Timespec { tv_sec: 0, tv_nsec: 0 }, |at| {
            // Zero would disarm it.
            let wait = at.saturating_duration_since(Instant::now()).max(Duration::from_nanos(1));
            Timespec { tv_sec: wait.as_secs() as _, tv_nsec: wait.subsec_nanos().into() }
        });
        let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
        let set =
            timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &Itimerspec { it_interval, it_value });
        set.unwrap_or_else(|error| panic!("timerfd_settime: {error}"));
    }
}
