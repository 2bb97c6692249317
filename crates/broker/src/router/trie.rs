//! An index of topic filters: which of them match a topic.

use std::collections::HashMap;

use crate::topic::TopicFilter;

/// Values under topic filters, found by topic name.
///
/// Filters without wildcards are one hash of the whole topic; the others are a tree of levels. Matching allocates
/// nothing. A filter may hold many values.
#[derive(Debug)]
pub struct FilterTrie<T> {
    exact: HashMap<Box<str>, Vec<T>>,
    root: Node<T>,
    len: usize,
    wildcards: usize,
    /// Values of filters without wildcards whose first level starts with `$`.
    exact_of_dollar: usize,
}

#[derive(Debug)]
struct Node<T> {
    children: HashMap<Box<str>, Node<T>>,
    plus: Option<Box<Node<T>>>,
    /// Values of filters that end here.
    values: Vec<T>,
    /// Values of filters that end with a `#` below this level, which matches this level too.
    hash: Vec<T>,
}

impl<T> FilterTrie<T> {
    /// An empty index.
    pub fn new() -> FilterTrie<T> {
        FilterTrie { exact: HashMap::new(), root: Node::new(), len: 0, wildcards: 0, exact_of_dollar: 0 }
    }

    /// Number of values in the trie.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if the trie holds no value.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds a value under a filter, beside those that are there.
    pub fn insert(&mut self, filter: &TopicFilter, value: T) {
        self.len += 1;
        if filter.has_wildcards() {
            self.wildcards += 1;
            self.root.insert(filter.as_str(), value);
            return;
        }
        self.exact_of_dollar += usize::from(filter.as_str().starts_with('$'));
        match self.exact.get_mut(filter.as_str()) {
            Some(values) => values.push(value),
            None => {
                self.exact.insert(filter.as_str().into(), vec![value]);
            }
        }
    }

    /// Changes the first value under exactly this filter that `wanted` accepts, and says whether there was one.
    pub fn update(
        &mut self,
        filter: &TopicFilter,
        wanted: impl FnMut(&T) -> bool,
        change: impl FnOnce(&mut T),
    ) -> bool {
        let values = if filter.has_wildcards() {
            self.root.values_mut(filter.as_str())
        } else {
            self.exact.get_mut(filter.as_str())
        };
        let Some(values) = values else { return false };
        let Some(at) = values.iter().position(wanted) else { return false };
        change(&mut values[at]);
        true
    }

    /// Takes out the first value under exactly this filter that `wanted` accepts.
    pub fn remove(&mut self, filter: &TopicFilter, wanted: impl FnMut(&T) -> bool) -> Option<T> {
        let removed = if filter.has_wildcards() {
            let removed = self.root.remove(filter.as_str(), wanted);
            self.wildcards -= usize::from(removed.is_some());
            removed
        } else {
            let values = self.exact.get_mut(filter.as_str())?;
            let removed = take_first(values, wanted);
            if values.is_empty() {
                self.exact.remove(filter.as_str());
            }
            let of_dollar = removed.is_some() && filter.as_str().starts_with('$');
            self.exact_of_dollar -= usize::from(of_dollar);
            removed
        };
        self.len -= usize::from(removed.is_some());
        removed
    }

    /// True if a filter may match a topic that starts with these two levels, the first of which starts with `$`; false
    /// only if none does.
    pub fn has_below(&self, first: &str, second: &str) -> bool {
        let node = self.root.children.get(first);
        self.exact_of_dollar > 0
            || node.is_some_and(|node| {
                !node.hash.is_empty() || node.plus.is_some() || node.children.contains_key(second)
            })
    }

    /// Calls `found` with every value whose filter matches `topic`, once for each filter it stands under, in no
    /// particular order.
    pub fn for_each_match<'a>(&'a self, topic: &str, mut found: impl FnMut(&'a T)) {
        if let Some(values) = self.exact.get(topic) {
            values.iter().for_each(&mut found);
        }
        if self.wildcards == 0 {
            return;
        }
        if topic.starts_with('$') {
            // A leading wildcard does not match such a topic (MQTT 5, section 4.7.2).
            let (level, rest) = split(topic);
            if let Some(child) = self.root.children.get(level) {
                child.walk(rest, &mut found);
            }
        } else {
            self.root.walk(Some(topic), &mut found);
        }
    }
}

impl<T> Default for FilterTrie<T> {
    fn default() -> FilterTrie<T> {
        FilterTrie::new()
    }
}

impl<T> Node<T> {
    fn new() -> Node<T> {
        Node { children: HashMap::new(), plus: None, values: Vec::new(), hash: Vec::new() }
    }

    fn is_empty(&self) -> bool {
        self.children.is_empty() && self.plus.is_none() && self.values.is_empty() && self.hash.is_empty()
    }

    fn insert(&mut self, filter: &str, value: T) {
        let mut node = self;
        for level in filter.split('/') {
            node = match level {
                "#" => {
                    node.hash.push(value);
                    return;
                }
                "+" => node.plus.get_or_insert_with(|| Box::new(Node::new())),
                _ => {
                    if !node.children.contains_key(level) {
                        node.children.insert(level.into(), Node::new());
                    }
                    node.children.get_mut(level).expect("inserted above")
                }
            };
        }
        node.values.push(value);
    }

    fn values_mut(&mut self, filter: &str) -> Option<&mut Vec<T>> {
        let mut node = self;
        for level in filter.split('/') {
            node = match level {
                "#" => return Some(&mut node.hash),
                "+" => node.plus.as_deref_mut()?,
                _ => node.children.get_mut(level)?,
            };
        }
        Some(&mut node.values)
    }

    /// Removes and prunes empty nodes. Depth is bounded by the levels of a valid filter.
    fn remove(&mut self, filter: &str, wanted: impl FnMut(&T) -> bool) -> Option<T> {
        let (level, rest) = split(filter);
        if level == "#" {
            return take_first(&mut self.hash, wanted);
        }
        let child = if level == "+" { self.plus.as_deref_mut()? } else { self.children.get_mut(level)? };
        let removed = match rest {
            Some(rest) => child.remove(rest, wanted),
            None => take_first(&mut child.values, wanted),
        };
        if child.is_empty() {
            if level == "+" {
                self.plus = None;
            } else {
                self.children.remove(level);
            }
        }
        removed
    }

    /// `rest` is the rest of the topic below this node; `None` when the topic ends here.
    fn walk<'a>(&'a self, rest: Option<&str>, found: &mut impl FnMut(&'a T)) {
        self.hash.iter().for_each(&mut *found);
        let Some(rest) = rest else {
            self.values.iter().for_each(found);
            return;
        };
        let (level, rest) = split(rest);
        if let Some(plus) = &self.plus {
            plus.walk(rest, found);
        }
        if !self.children.is_empty()
            && let Some(child) = self.children.get(level)
        {
            child.walk(rest, found);
        }
    }
}

fn split(text: &str) -> (&str, Option<&str>) {
    match text.split_once('/') {
        Some((level, rest)) => (level, Some(rest)),
        None => (text, None),
    }
}

fn take_first<T>(values: &mut Vec<T>, wanted: impl FnMut(&T) -> bool) -> Option<T> {
    let at = values.iter().position(wanted)?;
    let removed = values.swap_remove(at);
    if values.is_empty() {
        values.shrink_to_fit();
    }
    Some(removed)
}
