//! The binary as its users have it: a node in a process of its own, clients that others wrote, crashes, a
//! full disk, and the examples.

mod access;
mod answered;
mod archives;
mod assets;
mod bridging;
mod brokering;
mod clients;
mod clusters;
mod components;
mod crash;
mod damage;
mod diagnostics;
mod disk;
mod durable;
mod encrypted;
mod examples;
mod frameworks;
mod hostile_deploys;
mod isolation;
mod key_files;
mod kill;
mod load;
mod memory;
mod names;
mod network;
mod object_power;
mod power;
mod proxying;
mod reaching;
mod recording;
mod replies;
mod spinning;
mod support;
mod websocket;
mod workflows;
