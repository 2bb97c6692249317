//! Converts a compiled workflow to a graph for drawing.

use crate::graph::{Edge, Graph, Group, Kind as Shape, Node as Drawn};
use crate::program::{
    Block, Channel, DurationSpec, Flow, Fork, Kind, Listen, Mode, Node, NodeId, Program, Publish, Try,
};

/// Id of the start node.
pub const START: &str = "start";
/// Id of the end node.
pub const END: &str = "end";

/// The flowchart of a workflow: a node for each task without inner tasks, with its name and kind; a box for each task with
/// inner tasks; edges between them. The edges of a `switch` are labelled with its cases.
///
/// A node's id is `t` and the task's [`NodeId`]; the id of the condition of an `if` starts with `c`, and that of a `catch`
/// with `e`.
pub fn flowchart(program: &Program) -> Graph {
    let mut painter = Painter { program, graph: Graph::default(), to_end: Vec::new() };
    painter.node(START.to_owned(), program.name.clone(), Shape::Start);
    let mut top = Group::default();
    let Passage { entries, ends } = painter.list(&program.root.tasks, &mut top);
    painter.connect(&[Way { from: START.to_owned(), label: None }], &entries);
    painter.node(END.to_owned(), "end".to_owned(), Shape::End);
    let mut last = ends;
    last.append(&mut painter.to_end);
    painter.connect(&last, &[END.to_owned()]);
    painter.graph.groups = top.groups;
    painter.graph
}

/// The path of the task that a node of the flowchart stands for; `None` for the start, the end and unknown nodes.
pub fn task_of<'a>(program: &'a Program, node: &str) -> Option<&'a str> {
    let id: NodeId = node.strip_prefix(['t', 'c', 'e'])?.parse().ok()?;
    program.nodes.get(id as usize).map(|node| &*node.path)
}

struct Painter<'a> {
    program: &'a Program,
    graph: Graph,
    /// Edges to the end of the workflow.
    to_end: Vec<Way>,
}

/// An edge whose target is not known yet.
#[derive(Clone)]
struct Way {
    from: String,
    label: Option<String>,
}

/// A drawn list of tasks: its first nodes, and its outgoing edges.
struct Passage {
    entries: Vec<String>,
    ends: Vec<Way>,
}

/// A drawn task: its first nodes, and its outgoing edges with their targets.
struct Step {
    entries: Vec<String>,
    leaving: Vec<(Way, Flow)>,
}

impl Painter<'_> {
    fn list(&mut self, tasks: &[NodeId], group: &mut Group) -> Passage {
        // Pending edges to each task that is not drawn yet. The last entry has the edges to the end of the list.
        let mut leading: Vec<Vec<Way>> = vec![Vec::new(); tasks.len() + 1];
        let mut entries: Vec<Vec<String>> = Vec::with_capacity(tasks.len());
        for (index, id) in tasks.iter().enumerate() {
            let step = self.task(*id, group);
            let before = leading.get_mut(index).map(std::mem::take).unwrap_or_default();
            self.connect(&before, &step.entries);
            entries.push(step.entries);
            for (way, flow) in step.leaving {
                let target = match flow {
                    Flow::Continue => index + 1,
                    Flow::Exit => tasks.len(),
                    Flow::Goto(target) => target as usize,
                    Flow::End => {
                        self.to_end.push(way);
                        continue;
                    }
                };
                match (entries.get(target), leading.get_mut(target)) {
                    (Some(entries), _) => {
                        let entries = entries.clone();
                        self.connect(&[way], &entries);
                    }
                    (None, Some(later)) => later.push(way),
                    (None, None) => {}
                }
            }
        }
        Passage {
            entries: entries.into_iter().next().unwrap_or_default(),
            ends: leading.pop().unwrap_or_default(),
        }
    }

    fn task(&mut self, id: NodeId, group: &mut Group) -> Step {
        let node = self.program.node(id);
        let question = node.condition.as_ref().map(|condition| {
            let name = format!("c{id}");
            self.add(group, name.clone(), format!("if {}", condition.source()), Shape::Choice);
            name
        });
        let mut step = match &node.kind {
            Kind::Do(block) => self.boxed(node, node.name.clone(), &block.tasks, group),
            Kind::Fork(fork) => self.fork(node, fork, group),
            Kind::For(each) => {
                let together = each.parallel.map(|max| format!(", {max} at a time")).unwrap_or_default();
                let title = format!("{}: for each ${}{together}", node.name, each.each);
                let step = self.boxed(node, title, &each.block.tasks, group);
                let ways: Vec<Way> = step.leaving.iter().map(|(way, _)| way.with("next")).collect();
                self.connect(&ways, &step.entries);
                step
            }
            Kind::Try(tried) => self.try_catch(id, node, tried, group),
            Kind::Switch(cases) => {
                let name = self.leaf(id, node, group);
                let mut leaving: Vec<(Way, Flow)> =
                    cases.iter().map(|case| (way(&name).with(&case.name), case.then)).collect();
                if cases.iter().all(|case| case.when.is_some()) {
                    leaving.push((way(&name).with("else"), node.then));
                }
                Step { entries: vec![name], leaving }
            }
            Kind::Raise(_) => Step { entries: vec![self.leaf(id, node, group)], leaving: Vec::new() },
            Kind::Listen(Listen { foreach: Some(foreach), .. }) => {
                let name = self.leaf(id, node, group);
                let mut inner = Group { title: format!("{}: each event", node.name), ..Group::default() };
                let Passage { entries, ends } = self.list(&foreach.block.tasks, &mut inner);
                self.connect(&[way(&name).with("event")], &entries);
                self.connect(&ends, std::slice::from_ref(&name));
                group.groups.push(inner);
                Step { leaving: vec![(way(&name), node.then)], entries: vec![name] }
            }
            _ => {
                let name = self.leaf(id, node, group);
                Step { leaving: vec![(way(&name), node.then)], entries: vec![name] }
            }
        };
        if let Some(question) = question {
            self.connect(&[way(&question).with("yes")], &step.entries);
            step.leaving.push((way(&question).with("no"), Flow::Continue));
            step.entries = vec![question];
        }
        step
    }

    /// Draws a box that contains a list of tasks.
    fn boxed(&mut self, node: &Node, title: String, tasks: &[NodeId], group: &mut Group) -> Step {
        let mut inner = Group { title, ..Group::default() };
        let Passage { entries, ends } = self.list(tasks, &mut inner);
        group.groups.push(inner);
        Step { entries, leaving: ends.into_iter().map(|way| (way, node.then)).collect() }
    }

    fn fork(&mut self, node: &Node, fork: &Fork, group: &mut Group) -> Step {
        let how = if fork.compete { "fork, the first wins" } else { "fork" };
        let mut inner = Group { title: format!("{}: {how}", node.name), ..Group::default() };
        let mut step = Step { entries: Vec::new(), leaving: Vec::new() };
        for branch in &fork.branches {
            let Passage { entries, ends } = self.list(std::slice::from_ref(branch), &mut inner);
            step.entries.extend(entries);
            step.leaving.extend(ends.into_iter().map(|way| (way, node.then)));
        }
        group.groups.push(inner);
        step
    }

    fn try_catch(&mut self, id: NodeId, node: &Node, tried: &Try, group: &mut Group) -> Step {
        let mut inner = Group { title: format!("{}: try", node.name), ..Group::default() };
        let Passage { entries, ends: mut leaving } = self.list(&tried.block.tasks, &mut inner);
        let caught = format!("e{id}");
        let what: Vec<String> =
            tried.with.iter().map(|(name, value)| format!("{name} {}", plain(value))).collect();
        let label =
            if what.is_empty() { "catch".to_owned() } else { format!("catch\n{}", what.join("\n")) };
        self.add(&mut inner, caught.clone(), label, Shape::Error);
        let from: Vec<Way> = entries.iter().map(|entry| way(entry).with("error")).collect();
        self.connect(&from, std::slice::from_ref(&caught));
        if tried.retry.is_some() {
            self.connect(&[way(&caught).with("retry")], &entries);
        }
        match &tried.handler {
            Some(Block { tasks }) => {
                let mut handler = Group { title: "catch".to_owned(), ..Group::default() };
                let handling = self.list(tasks, &mut handler);
                self.connect(&[way(&caught)], &handling.entries);
                leaving.extend(handling.ends);
                inner.groups.push(handler);
            }
            // Without `retry` and handler, a caught error is ignored: the flow continues after the task.
            None if tried.retry.is_none() => leaving.push(way(&caught)),
            None => {}
        }
        group.groups.push(inner);
        Step { entries, leaving: leaving.into_iter().map(|way| (way, node.then)).collect() }
    }

    fn leaf(&mut self, id: NodeId, node: &Node, group: &mut Group) -> String {
        let shape = match &node.kind {
            Kind::Switch(_) => Shape::Choice,
            Kind::Wait(_) => Shape::Wait,
            Kind::Emit(_) | Kind::Listen(_) | Kind::Publish(_) => Shape::Event,
            Kind::Raise(_) => Shape::Error,
            _ => Shape::Task,
        };
        let label = format!("{}\n{}", node.name, description(&node.kind));
        let name = format!("t{id}");
        self.add(group, name.clone(), label, shape);
        name
    }

    fn add(&mut self, group: &mut Group, id: String, label: String, kind: Shape) {
        group.nodes.push(id.clone());
        self.node(id, label, kind);
    }

    fn node(&mut self, id: String, label: String, kind: Shape) {
        self.graph.nodes.push(Drawn { id, label, kind });
    }

    fn connect(&mut self, ways: &[Way], entries: &[String]) {
        for way in ways {
            for entry in entries {
                let edge = Edge { from: way.from.clone(), to: entry.clone(), label: way.label.clone() };
                // Equal edges are drawn once.
                if !self.graph.edges.contains(&edge) {
                    self.graph.edges.push(edge);
                }
            }
        }
    }
}

impl Way {
    fn with(&self, label: &str) -> Self {
        let label = match &self.label {
            Some(before) => format!("{before}, {label}"),
            None => label.to_owned(),
        };
        Self { from: self.from.clone(), label: Some(label) }
    }
}

fn way(from: &str) -> Way {
    Way { from: from.to_owned(), label: None }
}

/// The keyword of a task and its main argument, such as the function of a `call`.
fn description(kind: &Kind) -> String {
    let about = match kind {
        Kind::Call(call) => call.function.clone(),
        Kind::Http(http) => {
            format!("{} {}", http.method, http.endpoint.literal().map(plain).unwrap_or_default())
        }
        Kind::Publish(Publish { channel: Channel::Topic(topic), .. }) => {
            topic.literal().map(plain).unwrap_or_default()
        }
        Kind::Publish(Publish { channel: Channel::Operation(_, operation), .. })
        | Kind::Listen(Listen { operation: Some((_, operation)), .. }) => operation.name.clone(),
        Kind::OpenApi(call) => call.operation.clone(),
        Kind::Function(function) => function.name.clone(),
        Kind::RunWorkflow(run) => format!("workflow {}", run.name),
        Kind::RunScript(_) => "script".to_owned(),
        Kind::Wait(DurationSpec::Fixed(ms)) => length(*ms),
        Kind::Emit(emit) => match emit.event.literal().and_then(|event| event.get("type")) {
            Some(kind) => plain(kind),
            None => String::new(),
        },
        Kind::Listen(listen) => {
            let many = match listen.strategy.mode {
                Mode::One => "",
                Mode::Any => "any of ",
                Mode::All => "all of ",
            };
            let of = |filter: &crate::program::EventFilter| {
                let named = |wanted: &str| {
                    let value = filter.attributes.iter().find(|(name, _)| name == wanted);
                    let value =
                        value.map(|(_, value)| value.literal().map_or_else(|| "…".to_owned(), plain));
                    let pattern = filter.patterns.iter().find(|(name, _)| name == wanted);
                    value.or_else(|| pattern.map(|(_, pattern)| pattern.text().to_owned()))
                };
                named("subject").or_else(|| named("type"))
            };
            let kinds: Vec<String> = listen.strategy.filters.iter().filter_map(of).collect();
            format!("{many}{}", kinds.join(", "))
        }
        _ => String::new(),
    };
    format!("{} {about}", kind.word()).trim_end().to_owned()
}

/// A string without quotes; any other value as JSON.
fn plain(value: &serde_json::Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// A duration in the largest unit that divides it without a remainder.
fn length(ms: u64) -> String {
    let units = [(86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s")];
    let fits = units.iter().find(|(of, _)| ms > 0 && ms.is_multiple_of(*of));
    fits.map_or_else(|| format!("{ms} ms"), |(of, unit)| format!("{} {unit}", ms / of))
}
