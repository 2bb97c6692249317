//! Totals by replica, the base of the counters. The total of a replica only grows, so the larger of two is the later one.

use std::collections::BTreeMap;
use std::mem::size_of;

use postcard::Error;

use crate::ReplicaId;
use crate::wire::{Reader, Wire};

/// The total of one replica.
pub(crate) trait Total: Copy + Default + PartialEq + Wire {
    /// The pairwise larger of two totals of one replica.
    fn join(self, other: Self) -> Self;
    /// The sum of totals of two replicas, if it fits.
    fn checked_plus(self, other: Self) -> Option<Self>;
    /// The total after a deletion that has seen all of it.
    fn without_all(self) -> Self;
    /// The total with at least the removed part of another, as far as it is a part of this total.
    fn with_removed_of(self, other: Self) -> Self;
    /// A total without value, above all totals of the replica up to `up_to`.
    fn reserved(up_to: u64) -> Self;
    /// The largest amount in it.
    fn highest(self) -> u64;
    /// True if a deletion removed a part of it.
    fn has_removed(self) -> bool;
    /// Writes the removed part.
    fn write_removed(self, out: &mut Vec<u8>);
    /// Reads the removed part of this total.
    fn read_removed(self, from: &mut Reader<'_>) -> Result<Self, Error>;
}

/// The totals of all replicas. A node's folded incarnations are one base; above it stand those that still count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ReplicaTotals<T> {
    bases: BTreeMap<u64, Base<T>>,
    totals: BTreeMap<ReplicaId, T>,
}

/// The combined total of a node's incarnations up to `up_to`, inclusive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Base<T> {
    up_to: u32,
    total: T,
}

impl<T> Default for ReplicaTotals<T> {
    fn default() -> Self {
        Self { bases: BTreeMap::new(), totals: BTreeMap::new() }
    }
}

impl<T: Total> ReplicaTotals<T> {
    pub(crate) fn is_empty(&self) -> bool {
        self.bases.is_empty() && self.totals.is_empty()
    }

    pub(crate) fn has_bases(&self) -> bool {
        !self.bases.is_empty()
    }

    /// All totals that count.
    pub(crate) fn totals(&self) -> impl Iterator<Item = T> + '_ {
        self.bases.values().map(|base| base.total).chain(self.totals.values().copied())
    }

    /// True if a deletion removed parts of totals.
    pub(crate) fn has_removed(&self) -> bool {
        self.totals().any(T::has_removed)
    }

    /// True if a deletion has removed all of every total.
    pub(crate) fn is_removed(&self) -> bool {
        self.totals().all(|total| total == total.without_all())
    }

    /// Removes all that the totals count. The result is the delta as well: a replica that lacks a total must get it with
    /// its removed part.
    pub(crate) fn remove_all(&mut self) {
        self.bases.values_mut().for_each(|base| base.total = base.total.without_all());
        self.totals.values_mut().for_each(|total| *total = total.without_all());
    }

    pub(crate) fn get(&self, replica: ReplicaId) -> T {
        self.totals.get(&replica).copied().unwrap_or_default()
    }

    /// The largest amount that a replica has in it.
    pub(crate) fn highest_of(&self, replica: ReplicaId) -> u64 {
        self.get(replica).highest()
    }

    /// Lets a replica continue above all of its amounts up to `up_to`.
    pub(crate) fn reserve(&mut self, replica: ReplicaId, up_to: u64) {
        self.totals.insert(replica, T::reserved(up_to));
    }

    /// Sets a replica's total and gives it as a delta.
    pub(crate) fn set(&mut self, replica: ReplicaId, total: T) -> Self {
        self.totals.insert(replica, total);
        Self { bases: BTreeMap::new(), totals: BTreeMap::from([(replica, total)]) }
    }

    /// Sets a replica's total without a delta; `None` removes it.
    pub(crate) fn replace(&mut self, replica: ReplicaId, total: Option<T>) {
        match total {
            Some(total) => self.totals.insert(replica, total),
            None => self.totals.remove(&replica),
        };
    }

    pub(crate) fn folded_up_to(&self, node: u64) -> Option<u32> {
        self.bases.get(&node).map(|base| base.up_to)
    }

    /// The higher base of a node wins and covers the totals below it.
    pub(crate) fn merge(&mut self, other: &Self) -> bool {
        let mut changed = false;
        for (node, theirs) in &other.bases {
            changed |= self.take_base(*node, *theirs);
        }
        for (replica, theirs) in &other.totals {
            if self.bases.get(&replica.node).is_some_and(|base| replica.incarnation <= base.up_to) {
                continue;
            }
            let ours = self.totals.entry(*replica).or_insert_with(|| {
                changed = true;
                T::default()
            });
            let joined = ours.join(*theirs);
            changed |= joined != *ours;
            *ours = joined;
        }
        changed
    }

    pub(crate) fn fold(&mut self, node: u64, up_to: u32) -> bool {
        let base = self.bases.get(&node).copied();
        if base.is_some_and(|base| base.up_to >= up_to) {
            return false;
        }
        let mut covered = self.totals.range(incarnations(node, up_to)).map(|(_, total)| *total).peekable();
        if base.is_none() && covered.peek().is_none() {
            return false;
        }
        let start = base.map(|base| base.total).unwrap_or_default();
        let Some(total) = covered.try_fold(start, T::checked_plus) else { return false };
        self.take_base(node, Base { up_to, total })
    }

    pub(crate) fn size_bytes(&self) -> usize {
        self.totals.len() * (size_of::<ReplicaId>() + size_of::<T>())
            + self.bases.len() * (size_of::<u64>() + size_of::<Base<T>>())
    }

    /// The totals alone, for a state without bases.
    pub(crate) fn write_totals(&self, out: &mut Vec<u8>) {
        self.totals.write(out);
    }

    pub(crate) fn read_totals(from: &mut Reader<'_>) -> Result<Self, Error> {
        Ok(Self { bases: BTreeMap::new(), totals: BTreeMap::read(from)? })
    }

    /// Bases and totals, each with its removed part.
    pub(crate) fn write_with_removed(&self, out: &mut Vec<u8>) {
        self.write(out);
        self.totals().for_each(|total| total.write_removed(out));
    }

    pub(crate) fn read_with_removed(from: &mut Reader<'_>) -> Result<Self, Error> {
        let mut tally = Self::read(from)?;
        for base in tally.bases.values_mut() {
            base.total = base.total.read_removed(from)?;
        }
        for total in tally.totals.values_mut() {
            *total = total.read_removed(from)?;
        }
        Ok(tally)
    }

    fn take_base(&mut self, node: u64, theirs: Base<T>) -> bool {
        let joined = match self.bases.get(&node) {
            Some(ours) if ours.up_to > theirs.up_to => *ours,
            Some(ours) if ours.up_to == theirs.up_to => {
                Base { up_to: ours.up_to, total: ours.total.join(theirs.total) }
            }
            _ => theirs,
        };
        // A node may fold its past before it learns of a deletion, which marks the totals that are folded here.
        let mut folded = self.bases.get(&node).map(|base| base.total);
        while let Some((&replica, &total)) = self.totals.range(incarnations(node, joined.up_to)).next() {
            folded = folded.unwrap_or_default().checked_plus(total);
            self.totals.remove(&replica);
        }
        let total = folded.map_or(joined.total, |folded| joined.total.with_removed_of(folded));
        let joined = Base { total, ..joined };
        self.bases.insert(node, joined) != Some(joined)
    }
}

impl<T: Total> Wire for ReplicaTotals<T> {
    fn write(&self, out: &mut Vec<u8>) {
        self.bases.write(out);
        self.totals.write(out);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Error> {
        let bases: BTreeMap<u64, Base<T>> = BTreeMap::read(from)?;
        let mut tally = Self::read_totals(from)?;
        for (node, base) in bases {
            tally.take_base(node, base);
        }
        Ok(tally)
    }
}

impl<T: Wire> Wire for Base<T> {
    fn write(&self, out: &mut Vec<u8>) {
        self.up_to.write(out);
        self.total.write(out);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Error> {
        Ok(Self { up_to: u32::read(from)?, total: T::read(from)? })
    }
}

/// A node's incarnations up to `up_to`, inclusive.
pub(crate) fn incarnations(node: u64, up_to: u32) -> std::ops::RangeInclusive<ReplicaId> {
    ReplicaId::new(node, 0)..=ReplicaId::new(node, up_to)
}
