//! Tests of placement. `reference` is a second, literal reading of the language.

mod against_reference;
mod language;
mod reference;
mod rules;
mod table;
mod warnings;
mod world;
mod zones;
