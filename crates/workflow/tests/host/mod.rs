//! A small node for one instance: a virtual clock, calls that are answered by hand or by a table, events, and after every
//! event the instance is rebuilt from its bytes.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::collections::BTreeMap;
use std::sync::Arc;

use edgefaas_workflow::instance::{
    ActiveFilter, Content, Credentials, Cut, DocumentSource, FrameId, Note, NoteKind, Outgoing, Permits,
    RequestParts, accepts,
};
use edgefaas_workflow::{
    Action, Environment, ErrorKind, Event, Instance, Program, Status, WorkflowError, compile,
};
use serde_json::{Value, json};

/// The wall clock when the virtual one is at 0: 2026-01-01.
pub const START_UNIX_MS: u64 = 1_767_225_600_000;
/// More events than any test has.
const MAX_EVENTS: u32 = 100_000;

/// What a workflow has asked for.
#[derive(Debug, Clone)]
pub enum Asked {
    Call { function: String, body: Value },
    Request(RequestParts),
    Script { code: String, input: Value },
    Workflow { name: String, input: Value },
    Document { place: String, parameters: Value, credentials: Option<Credentials> },
}

impl Asked {
    /// The function, script, workflow or URL.
    pub fn name(&self) -> &str {
        match self {
            Self::Call { function, .. } => function,
            Self::Request(request) => &request.url,
            Self::Script { code, .. } => code,
            Self::Workflow { name, .. } => name,
            Self::Document { place, .. } => place,
        }
    }

    /// What it was given.
    pub fn body(&self) -> Value {
        match self {
            Self::Call { body, .. } => body.clone(),
            Self::Request(request) => serde_json::from_slice(&request.body).unwrap_or_default(),
            Self::Script { input, .. } | Self::Workflow { input, .. } => input.clone(),
            Self::Document { parameters, .. } => parameters.clone(),
        }
    }
}

/// One instance and what is around it.
pub struct Host {
    pub program: Arc<Program>,
    pub instance: Instance,
    pub now_ms: u64,
    pub secrets: Value,
    pub runtime: Value,
    /// What was asked for and has not ended.
    pub asked: BTreeMap<FrameId, Asked>,
    /// Everything that was asked for, in order.
    pub asked_ever: Vec<(FrameId, Asked)>,
    /// What was asked for without a wish for an answer.
    pub let_go: Vec<Asked>,
    pub listens: BTreeMap<FrameId, Vec<ActiveFilter>>,
    pub published: Vec<Outgoing>,
    pub cancelled: Vec<FrameId>,
    pub notes: Vec<Note>,
    pub continues: u32,
    pub rebuilds: bool,
    turn: bool,
    events: u32,
}

/// A definition around a list of tasks.
pub fn around(tasks: &str) -> String {
    format!("document: {{dsl: '1.0.0', namespace: test, name: test, version: '1.0.0'}}\n{tasks}")
}

/// Compiles what must be right.
pub fn program(text: &str) -> Arc<Program> {
    match compile(text, "test.yaml") {
        Ok(compiled) => Arc::new(compiled.program),
        Err(error) => panic!("{error}\n{text}"),
    }
}

/// An error of a call.
pub fn error(kind: ErrorKind, status: u16) -> WorkflowError {
    WorkflowError::new(kind, "it did not work").with_status(status)
}

impl Host {
    /// An instance of a whole definition that has not started.
    pub fn new(text: &str, input: Value) -> Self {
        Self::of(program(text), input, 7)
    }

    /// The same of a program.
    pub fn of(program: Arc<Program>, input: Value, seed: u64) -> Self {
        Self {
            program,
            instance: Instance::new(Arc::from("one"), Arc::new(input), seed, START_UNIX_MS),
            now_ms: 0,
            secrets: json!({"api": "key"}),
            runtime: json!({"name": "edgefaas"}),
            asked: BTreeMap::new(),
            asked_ever: Vec::new(),
            let_go: Vec::new(),
            listens: BTreeMap::new(),
            published: Vec::new(),
            cancelled: Vec::new(),
            notes: Vec::new(),
            continues: 0,
            rebuilds: true,
            turn: false,
            events: 0,
        }
    }

    /// Runs tasks (a definition from `do:` on) until they wait for something.
    pub fn run(tasks: &str, input: Value) -> Self {
        let mut host = Self::new(&around(tasks), input);
        host.start();
        host
    }

    pub fn start(&mut self) {
        self.event(Event::Start);
    }

    /// One event, and turns until nothing is left to do.
    pub fn event(&mut self, event: Event) {
        let mut next = Some(event);
        while let Some(event) = next.take() {
            if self.step(event) {
                next = Some(Event::Continue);
            }
        }
    }

    /// One event. True if the instance wants another turn.
    pub fn step(&mut self, event: Event) -> bool {
        self.events += 1;
        assert!(self.events < MAX_EVENTS, "it goes round in circles");
        if self.rebuilds {
            self.rebuild();
        }
        let (program, secrets, runtime) =
            (self.program.clone(), self.secrets.clone(), self.runtime.clone());
        let environment = environment(self.now_ms, &secrets, &runtime);
        let continues = matches!(event, Event::Continue);
        let actions = self.instance.advance(&program, event, &environment);
        self.turn &= !continues;
        let again = actions.iter().filter(|action| matches!(action, Action::Continue)).count();
        assert!(again <= 1, "it wants {again} turns at once");
        actions.into_iter().for_each(|action| self.act(action));
        self.turn |= again > 0;
        if !self.turn {
            self.check_outstanding();
        }
        again > 0
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Call { frame, function, body, .. } => {
                self.ask(frame, Asked::Call { function: function.to_string(), body: body.to_json() }, true);
            }
            Action::Request { frame, request, .. } => self.ask(frame, Asked::Request(*request), true),
            Action::Document { frame, document, parameters, credentials, .. } => {
                let place = match *document {
                    DocumentSource::File(file) => file.to_string(),
                    DocumentSource::Request(request) => request.url,
                };
                let credentials = credentials.map(|credentials| *credentials);
                self.ask(
                    frame,
                    Asked::Document { place, parameters: (*parameters).clone(), credentials },
                    true,
                );
            }
            Action::Script { frame, code, input, wait, .. } => {
                self.ask(frame, Asked::Script { code: code.to_string(), input: (*input).clone() }, wait);
            }
            Action::Workflow { frame, name, input, wait, .. } => {
                self.ask(frame, Asked::Workflow { name: name.to_string(), input: (*input).clone() }, wait);
            }
            Action::Publish(outgoing) => self.published.push(outgoing),
            Action::Listen { frame, filters, .. } => drop(self.listens.insert(frame, filters)),
            Action::Unlisten { frame } => {
                assert!(self.listens.remove(&frame).is_some(), "{frame} did not listen");
            }
            Action::Cancel { frame } => {
                assert!(self.asked.remove(&frame).is_some(), "{frame} had asked for nothing");
                self.cancelled.push(frame);
            }
            Action::Continue => self.continues += 1,
            Action::Note(note) => self.notes.push(note),
        }
    }

    fn ask(&mut self, frame: FrameId, asked: Asked, wait: bool) {
        if !wait {
            return self.let_go.push(asked);
        }
        self.asked_ever.push((frame, asked.clone()));
        self.asked.insert(frame, asked);
    }

    fn rebuild(&mut self) {
        let bytes = self.instance.to_bytes(self.now_ms).unwrap();
        self.instance = Instance::from_bytes(&bytes, &self.program, self.now_ms).unwrap();
    }

    /// After a restart exactly that is asked for which has not ended.
    fn check_outstanding(&self) {
        let bytes = self.instance.to_bytes(self.now_ms).unwrap();
        let mut copy = Instance::from_bytes(&bytes, &self.program, self.now_ms).unwrap();
        let again =
            copy.outstanding(&self.program, &environment(self.now_ms, &self.secrets, &self.runtime));
        let (mut asked, mut listens) = (Vec::new(), Vec::new());
        for action in again {
            match action {
                Action::Call { frame, .. }
                | Action::Request { frame, .. }
                | Action::Document { frame, .. }
                | Action::Script { frame, .. }
                | Action::Workflow { frame, .. } => asked.push(frame),
                Action::Listen { frame, .. } => listens.push(frame),
                other => panic!("after a restart: {other:?}"),
            }
        }
        assert_eq!(asked, self.asked.keys().copied().collect::<Vec<_>>(), "asked for after a restart");
        assert_eq!(
            listens,
            self.listens.keys().copied().collect::<Vec<_>>(),
            "listened to after a restart"
        );
        assert_eq!(copy.status(), self.instance.status());
        if !self.instance.status().is_ended() && self.instance.status() != Status::Pending {
            let waits =
                !self.asked.is_empty() || !self.listens.is_empty() || self.instance.due_ms().is_some();
            assert!(waits, "it waits for nothing and has not ended: {:?}", self.instance);
        }
    }

    /// Answers the oldest call of that name.
    pub fn answer(&mut self, name: &str, result: Result<Value, WorkflowError>) {
        let found = self.asked.iter().find(|(_, asked)| asked.name() == name).map(|(frame, _)| *frame);
        let frame = found.unwrap_or_else(|| panic!("nothing asks for `{name}` but {:?}", self.asked));
        self.ended(frame, result);
    }

    /// Answers one that was asked for.
    pub fn ended(&mut self, frame: FrameId, result: Result<Value, WorkflowError>) {
        self.asked.remove(&frame);
        self.event(Event::Ended { frame, result: result.map(Arc::new) });
    }

    /// Names of what is asked for, in the order of the frames.
    pub fn asks(&self) -> Vec<&str> {
        self.asked.values().map(Asked::name).collect()
    }

    /// An event for all that listen to it.
    pub fn send(&mut self, event: Value) {
        let event = Arc::new(event);
        let listens = self.listens.clone();
        for (frame, filters) in listens {
            for (source, filter) in filters.iter().enumerate() {
                if accepts(filter, &event, START_UNIX_MS + self.now_ms) {
                    self.event(Event::Message { frame, source: source as u32, event: event.clone() });
                }
            }
        }
    }

    /// A CloudEvent.
    pub fn send_event(&mut self, kind: &str, data: Value) {
        let id = format!("event-{}", self.events);
        self.send(json!({"specversion": "1.0", "id": id, "source": "/test", "type": kind, "data": data}));
    }

    /// Lets the time go on to `now_ms`, with a tick each time one is due.
    pub fn until(&mut self, now_ms: u64) {
        while let Some(due_ms) = self.instance.due_ms().filter(|due_ms| *due_ms <= now_ms) {
            self.now_ms = self.now_ms.max(due_ms);
            self.event(Event::Tick);
        }
        self.now_ms = self.now_ms.max(now_ms);
    }

    pub fn status(&self) -> Status {
        self.instance.status()
    }

    /// The output of what must have completed.
    pub fn output(&self) -> Value {
        match (self.instance.status(), self.instance.result()) {
            (Status::Completed, Some(Ok(output))) => (**output).clone(),
            (status, result) => panic!("it is {status:?}: {result:?}, asks for {:?}", self.asked),
        }
    }

    /// The error of what must have failed.
    pub fn fault(&self) -> WorkflowError {
        match (self.instance.status(), self.instance.result()) {
            (Status::Faulted, Some(Err(error))) => error.clone(),
            (status, result) => panic!("it is {status:?}: {result:?}, asks for {:?}", self.asked),
        }
    }

    /// The names of the tasks of which there is such a note, in order.
    pub fn noted(&self, kind: NoteKind) -> Vec<&str> {
        let notes = self.notes.iter().filter(|note| note.kind == kind);
        notes.filter_map(|note| Some(self.program.node(note.node?).name.as_str())).collect()
    }

    /// The events that were sent.
    pub fn events_sent(&self) -> Vec<Value> {
        let of = |outgoing: &Outgoing| match &outgoing.content {
            Content::CloudEvent(event) => (**event).clone(),
            Content::Payload(payload) => payload.clone(),
        };
        self.published.iter().map(of).collect()
    }
}

pub fn environment<'a>(now_ms: u64, secrets: &'a Value, runtime: &'a Value) -> Environment<'a> {
    Environment {
        now_ms,
        unix_ms: START_UNIX_MS + now_ms,
        secrets,
        runtime,
        observed: true,
        memory_bytes: u64::MAX,
        cut: Cut::Memory,
        permits: Permits::ANY_MESSAGE,
    }
}
