//! `for`: one iteration after the other, or several at a time.

use std::sync::Arc;

use super::event::FrameId;
use super::frame::{Frame, State};
use super::run::Run;
use super::work::Work;
use crate::data::Data;
use crate::error::{ErrorKind, WorkflowError};
use crate::program::For;

/// Maximum number of items of one loop.
const MAX_ITEMS: usize = 10_000_000;

impl<'a> Run<'a> {
    /// Starts the next iterations of a loop, or ends it. `input` is the input of the next sequential iteration.
    pub(super) fn iterate(&mut self, id: FrameId, each: &'a For, input: Data) {
        let mut begun = Vec::new();
        loop {
            let Some(frame) = self.frame(id) else { return };
            let (parent, slot, raw, own, Some(node)) =
                (frame.parent, frame.slot, frame.raw.clone(), frame.input.clone(), frame.node)
            else {
                return;
            };
            let State::For { items, next, running, outputs } = &frame.state else { return };
            let (index, at_once) = (*next, each.parallel.unwrap_or(1));
            if *running >= at_once {
                break;
            }
            let Some(item) = items.items().and_then(|items| items.get(index as usize)).cloned() else {
                if *running == 0 {
                    let output = match each.parallel {
                        None => input,
                        Some(_) => all(outputs),
                    };
                    self.finish_composed(id, output);
                }
                break;
            };
            let input = if each.parallel.is_some() { own } else { input.clone() };
            let variables = vec![
                (Arc::from(each.each.as_str()), item),
                (Arc::from(each.at.as_str()), Data::from(index)),
            ];
            let list = self.add(Frame {
                node: Some(node),
                parent: Some(id),
                slot: index,
                started_unix_ms: self.environment.unix_ms,
                raw: input.clone(),
                input: input.clone(),
                due_ms: None,
                timeout_ms: None,
                variables,
                state: State::List,
                held_bytes: 0,
            });
            if let Some(condition) = &each.condition {
                let scope = self.scope(Some(list), Some(self.program.node(node)), Some(&input), None);
                match scope.is_true(condition, &input) {
                    Ok(true) => {}
                    Ok(false) => {
                        self.instance.take_frame(list);
                        return self.finish_frame(id, input, None);
                    }
                    Err(error) => {
                        self.cancel_below(Some(id));
                        self.cancel(id);
                        let Some(parent) = parent else { return };
                        return self.push(Work::Fail { parent, slot, node, raw, error });
                    }
                }
            }
            if let Some(Frame { state: State::For { next, running, .. }, .. }) = self.frame_mut(id) {
                *next += 1;
                *running += 1;
            }
            begun.push((list, input));
            if each.parallel.is_none() {
                break;
            }
        }
        // The last item pushed is processed first.
        for (list, input) in begun.into_iter().rev() {
            self.enter_list(list, 0, input);
        }
    }
}

/// The outputs of branches; null for a branch without output.
pub(super) fn all(outputs: &[Option<Data>]) -> Data {
    Data::list(outputs.iter().map(|output| output.clone().unwrap_or_default()).collect())
}

pub(super) fn items(value: Data) -> Result<Data, WorkflowError> {
    let kind = match &value {
        Data::Arr(items) if items.len() > MAX_ITEMS => {
            let detail = format!("the list has more than {MAX_ITEMS} items");
            return Err(WorkflowError::new(ErrorKind::Runtime, detail));
        }
        Data::Arr(_) => return Ok(value),
        Data::Null => return Ok(Data::list(Vec::new())),
        Data::Bool(_) => "a boolean",
        Data::Num(_) => "a number",
        Data::Str(_) => "a string",
        Data::Obj(_) => "an object",
    };
    let detail = format!("a loop goes through a list; `in` gave {kind}");
    Err(WorkflowError::new(ErrorKind::Expression, detail))
}
