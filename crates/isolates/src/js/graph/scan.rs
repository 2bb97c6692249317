//! Imports, exports and forms of a module, by its syntax tree.

use std::collections::{BTreeSet, HashMap};

use oxc::allocator::Allocator;
use oxc::ast::ast::{
    Argument, AssignmentExpression, AssignmentTarget, CallExpression, ConditionalExpression, Declaration,
    Expression, IdentifierReference, IfStatement, ImportDeclaration, ImportDeclarationSpecifier,
    ImportExpression, LogicalExpression, LogicalOperator, ModuleExportName, ObjectPropertyKind, Program,
    Statement, StaticMemberExpression, TryStatement, UnaryExpression, UnaryOperator,
};
use oxc::ast_visit::{Visit, walk};
use oxc::parser::ParseOptions;
use oxc::semantic::{Scoping, SymbolId};
use oxc::span::{GetSpan, SourceType, Span};

use super::constants::{NODE_ENV_TEXT, constant, is_node_env};
use crate::js::transpile::{self, SyntaxError};

/// The language of a file, as its name and the `package.json` above it tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Language {
    /// `.ts` or `.mts`.
    TypeScript,
    /// `.mjs`.
    Module,
    /// `.cjs`.
    CommonJs,
    /// `.js`: its syntax tells, as it does in bundlers, since packages set `"type": "module"` for files of both forms.
    Either {
        /// The form without syntax of ES modules and without names of CommonJS.
        plain: Form,
    },
}

/// The form of a module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// An ES module.
    Module,
    /// A CommonJS module.
    CommonJs,
    /// JSON.
    Json,
}

/// The names that an import takes from a module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Wants {
    /// `import { a, b as c }`, `import d`, `import "x"`, or a namespace of which only members are used.
    Names(Vec<String>),
    /// A namespace that is used as a value, and the members that are used directly.
    All(Vec<String>),
    /// `export { a as b } from`: imported and exported names.
    Reexported(Vec<(String, String)>),
    /// `export * from`.
    Star,
    /// `export * as name from`.
    StarAs(String),
}

/// A static import, or an `export … from`.
#[derive(Debug, Clone)]
pub(super) struct Import {
    pub specifier: String,
    /// Offset of the specifier in the text, in bytes.
    pub offset: usize,
    /// The statement.
    pub span: Span,
    pub wants: Wants,
    /// The names in its braces, as the imported module exports them.
    pub named: Vec<String>,
}

/// An `import()`.
#[derive(Debug, Clone)]
pub(super) struct DynamicImport {
    /// None if it is computed.
    pub specifier: Option<String>,
    pub offset: usize,
}

/// A `require("…")`.
#[derive(Debug, Clone)]
pub(super) struct Require {
    pub specifier: String,
    pub offset: usize,
    /// True inside of a `try` with a `catch`.
    pub guarded: bool,
}

/// A module's facts.
#[derive(Debug, Clone)]
pub(super) struct Scanned {
    pub form: Form,
    pub imports: Vec<Import>,
    pub dynamic: Vec<DynamicImport>,
    pub requires: Vec<Require>,
    /// Names that the module itself exports, without those of `export *`. For CommonJS those that its syntax shows.
    pub exports: BTreeSet<String>,
    /// Modules whose exports a CommonJS module passes on.
    pub passed_on: Vec<String>,
    /// Names of CommonJS that the module uses and does not declare.
    pub globals: BTreeSet<&'static str>,
    /// Those of them that it asks for with `typeof`, so that it can do without.
    pub optional: BTreeSet<&'static str>,
    /// Replacements in the text: of the same length in bytes and without line breaks.
    pub edits: Vec<(Span, String)>,
}

impl Scanned {
    /// The facts of JSON.
    pub fn json() -> Self {
        Self {
            form: Form::Json,
            imports: Vec::new(),
            dynamic: Vec::new(),
            requires: Vec::new(),
            exports: BTreeSet::new(),
            passed_on: Vec::new(),
            globals: BTreeSet::new(),
            optional: BTreeSet::new(),
            edits: Vec::new(),
        }
    }
}

/// Names that exist in CommonJS modules only.
const COMMON_JS_GLOBALS: [&str; 10] = [
    "require",
    "module",
    "exports",
    "__filename",
    "__dirname",
    "global",
    "process",
    "Buffer",
    "setImmediate",
    "clearImmediate",
];

/// Parses a module. Recursive, as [`transpile`](transpile::transpile).
pub(super) fn scan(path: &str, source: &str, language: Language) -> Result<Scanned, SyntaxError> {
    match language {
        Language::TypeScript => parse(path, source, SourceType::ts(), Form::Module),
        Language::Module => parse(path, source, SourceType::mjs(), Form::Module),
        Language::CommonJs => parse(path, source, SourceType::cjs(), Form::CommonJs),
        Language::Either { plain } => {
            // Without these words there is no syntax of ES modules, so one parse is enough.
            if plain == Form::Module || source.contains("import") || source.contains("export") {
                match parse(path, source, SourceType::unambiguous(), Form::Module) {
                    Ok(scanned) if scanned.form == Form::Module => return Ok(scanned),
                    Ok(scanned) if plain == Form::Module && !uses_common_js(&scanned) => {
                        return parse(path, source, SourceType::mjs(), Form::Module);
                    }
                    // It may be valid as CommonJS only.
                    Err(error) if plain == Form::Module => {
                        return parse(path, source, SourceType::cjs(), Form::CommonJs)
                            .ok()
                            .filter(uses_common_js)
                            .ok_or(error);
                    }
                    Ok(_) | Err(_) => {}
                }
            }
            parse(path, source, SourceType::cjs(), Form::CommonJs)
        }
    }
}

fn uses_common_js(scanned: &Scanned) -> bool {
    ["require", "module", "exports"].iter().any(|name| scanned.globals.contains(name))
}

fn parse(path: &str, source: &str, kind: SourceType, form: Form) -> Result<Scanned, SyntaxError> {
    let allocator = Allocator::default();
    let options =
        ParseOptions { allow_return_outside_function: form == Form::CommonJs, ..ParseOptions::default() };
    let (program, scoping) = transpile::checked(&allocator, path, source, kind, options)?;
    // "unambiguous" is a module if its syntax is one's.
    let form = match form {
        Form::Module if program.source_type.is_module() => Form::Module,
        _ => Form::CommonJs,
    };
    let mut scanner = Scanner {
        source,
        scoping: &scoping,
        form,
        guards: 0,
        namespaces: HashMap::new(),
        scanned: Scanned { form, ..Scanned::json() },
    };
    scanner.statements(&program);
    scanner.visit_program(&program);
    scanner.hashbang(&program);
    Ok(scanner.finish())
}

/// True if the name is not declared in the module.
pub(super) fn is_global(identifier: &IdentifierReference<'_>, scoping: &Scoping) -> bool {
    let Some(reference) = identifier.reference_id.get() else { return true };
    scoping.get_reference(reference).symbol_id().is_none()
}

/// `import * as name`: its import, and uses of it as `name.member`.
struct Namespace {
    import: usize,
    members: Vec<String>,
    uses: usize,
}

struct Scanner<'s> {
    source: &'s str,
    scoping: &'s Scoping,
    form: Form,
    /// Open `try` blocks with a `catch`.
    guards: usize,
    namespaces: HashMap<SymbolId, Namespace>,
    scanned: Scanned,
}

impl Scanner<'_> {
    /// Imports and exports, which stand at the top level.
    fn statements(&mut self, program: &Program<'_>) {
        for statement in &program.body {
            match statement {
                Statement::ImportDeclaration(import) if import.import_kind.is_value() => {
                    self.import(import)
                }
                Statement::ExportFromDeclaration(export) if export.export_kind.is_value() => {
                    let names = export.specifiers.iter().filter(|one| one.export_kind.is_value());
                    let names: Vec<_> = names.map(|one| (text(&one.local), text(&one.exported))).collect();
                    self.scanned.exports.extend(names.iter().map(|(_, exported)| exported.clone()));
                    self.add(&export.source, export.span, Wants::Reexported(names));
                }
                Statement::ExportAllDeclaration(export) if export.export_kind.is_value() => {
                    let wants = match &export.exported {
                        Some(name) => {
                            self.scanned.exports.insert(text(name));
                            Wants::StarAs(text(name))
                        }
                        None => Wants::Star,
                    };
                    self.add(&export.source, export.span, wants);
                }
                Statement::ExportDefaultDeclaration(_) => {
                    self.scanned.exports.insert("default".to_owned());
                }
                Statement::ExportNamedDeclaration(export) => {
                    self.scanned.exports.extend(export.specifiers.iter().map(|one| text(&one.exported)));
                }
                Statement::ExportDeclaration(export) => self.declared(&export.declaration),
                _ => {}
            }
        }
    }

    fn add(&mut self, source: &oxc::ast::ast::StringLiteral<'_>, span: Span, wants: Wants) {
        let (specifier, offset) = (source.value.to_string(), source.span.start as usize);
        let named = match &wants {
            Wants::Names(names) => names.clone(),
            Wants::Reexported(names) => names.iter().map(|(local, _)| local.clone()).collect(),
            Wants::All(_) | Wants::Star | Wants::StarAs(_) => Vec::new(),
        };
        self.scanned.imports.push(Import { specifier, offset, span, wants, named });
    }

    fn import(&mut self, import: &ImportDeclaration<'_>) {
        let index = self.scanned.imports.len();
        let mut names = Vec::new();
        for specifier in import.specifiers.iter().flatten() {
            match specifier {
                ImportDeclarationSpecifier::ImportSpecifier(one) => names.push(text(&one.imported)),
                ImportDeclarationSpecifier::ImportDefaultSpecifier(_) => names.push("default".to_owned()),
                ImportDeclarationSpecifier::ImportNamespaceSpecifier(one) => {
                    if let Some(symbol) = one.local.symbol_id.get() {
                        let namespace = Namespace { import: index, members: Vec::new(), uses: 0 };
                        self.namespaces.insert(symbol, namespace);
                    }
                }
            }
        }
        self.add(&import.source, import.span, Wants::Names(names));
    }

    fn declared(&mut self, declaration: &Declaration<'_>) {
        let mut names: Vec<String> = Vec::new();
        match declaration {
            Declaration::VariableDeclaration(variables) => {
                for variable in &variables.declarations {
                    let identifiers = variable.id.get_binding_identifiers();
                    names.extend(identifiers.iter().map(|identifier| identifier.name.to_string()));
                }
            }
            other => names.extend(other.id().map(|id| id.name.to_string())),
        }
        self.scanned.exports.extend(names);
    }

    /// The engine knows no `#!`.
    fn hashbang(&mut self, program: &Program<'_>) {
        if let (Some(hashbang), Form::CommonJs) = (&program.hashbang, self.form) {
            let start = hashbang.span.start;
            self.scanned.edits.push((Span::new(start, start + 2), "//".to_owned()));
        }
    }

    fn finish(mut self) -> Scanned {
        for (symbol, namespace) in self.namespaces {
            let import = &mut self.scanned.imports[namespace.import];
            let Wants::Names(names) = &mut import.wants else { continue };
            names.extend(namespace.members);
            if self.scoping.get_resolved_references(symbol).count() != namespace.uses {
                import.wants = Wants::All(std::mem::take(names));
            }
        }
        self.scanned
    }

    /// Visits a branch that runs if `condition` holds.
    fn branch(&mut self, dead: bool, visit: impl FnOnce(&mut Self)) {
        if !dead {
            visit(self);
        }
    }

    fn is(&self, expression: &Expression<'_>, name: &str) -> bool {
        matches!(expression, Expression::Identifier(one) if one.name == name && is_global(one, self.scoping))
    }

    /// The name, if it is one of CommonJS and not declared in the module.
    fn common_js_global(&self, identifier: &IdentifierReference<'_>) -> Option<&'static str> {
        let name = COMMON_JS_GLOBALS.into_iter().find(|name| identifier.name == *name)?;
        is_global(identifier, self.scoping).then_some(name)
    }

    /// `exports` or `module.exports`.
    fn is_exports(&self, expression: &Expression<'_>) -> bool {
        match expression {
            Expression::StaticMemberExpression(member) => self.is_module_exports(member),
            other => self.is(other, "exports"),
        }
    }

    fn is_module_exports(&self, member: &StaticMemberExpression<'_>) -> bool {
        member.property.name == "exports" && self.is(&member.object, "module")
    }

    /// The specifier of `require("…")`.
    fn required(&self, expression: &Expression<'_>) -> Option<String> {
        let Expression::CallExpression(call) = expression else { return None };
        if !self.is(&call.callee, "require") {
            return None;
        }
        argument_text(call.arguments.first()?)
    }

    /// What a call shows of a CommonJS module's exports.
    fn called(&mut self, call: &CallExpression<'_>) {
        let name = match &call.callee {
            Expression::Identifier(callee) => callee.name.as_str(),
            Expression::StaticMemberExpression(callee) => callee.property.name.as_str(),
            _ => return,
        };
        let argument = |index: usize| call.arguments.get(index).and_then(Argument::as_expression);
        match name {
            "defineProperty" if argument(0).is_some_and(|object| self.is_exports(object)) => {
                self.scanned.exports.extend(call.arguments.get(1).and_then(argument_text));
            }
            // Of TypeScript, older TypeScript, and SWC.
            "__exportStar" | "__export" | "_export_star" => {
                let specifier = argument(0).and_then(|module| self.required(module));
                self.scanned.passed_on.extend(specifier);
            }
            _ => {}
        }
    }
}

fn text(name: &ModuleExportName<'_>) -> String {
    name.name().to_string()
}

/// The text of an argument that is a string.
fn argument_text(argument: &Argument<'_>) -> Option<String> {
    match argument.as_expression()? {
        Expression::StringLiteral(literal) => Some(literal.value.to_string()),
        Expression::TemplateLiteral(literal) if literal.expressions.is_empty() => {
            literal.quasis.first()?.value.cooked.map(|text| text.to_string())
        }
        _ => None,
    }
}

impl<'a> Visit<'a> for Scanner<'_> {
    fn visit_if_statement(&mut self, statement: &IfStatement<'a>) {
        self.visit_expression(&statement.test);
        let holds = constant(&statement.test, self.scoping).map(|value| value.holds());
        self.branch(holds == Some(false), |this| this.visit_statement(&statement.consequent));
        if let Some(alternate) = &statement.alternate {
            self.branch(holds == Some(true), |this| this.visit_statement(alternate));
        }
    }

    fn visit_conditional_expression(&mut self, expression: &ConditionalExpression<'a>) {
        self.visit_expression(&expression.test);
        let holds = constant(&expression.test, self.scoping).map(|value| value.holds());
        self.branch(holds == Some(false), |this| this.visit_expression(&expression.consequent));
        self.branch(holds == Some(true), |this| this.visit_expression(&expression.alternate));
    }

    fn visit_logical_expression(&mut self, expression: &LogicalExpression<'a>) {
        self.visit_expression(&expression.left);
        let holds = constant(&expression.left, self.scoping).map(|value| value.holds());
        let dead = match expression.operator {
            LogicalOperator::And => holds == Some(false),
            LogicalOperator::Or => holds == Some(true),
            LogicalOperator::Coalesce => holds.is_some(),
        };
        self.branch(dead, |this| this.visit_expression(&expression.right));
    }

    fn visit_try_statement(&mut self, statement: &TryStatement<'a>) {
        let guards = usize::from(statement.handler.is_some());
        self.guards += guards;
        self.visit_block_statement(&statement.block);
        self.guards -= guards;
        if let Some(handler) = &statement.handler {
            self.visit_catch_clause(handler);
        }
        if let Some(finalizer) = &statement.finalizer {
            self.visit_block_statement(finalizer);
        }
    }

    fn visit_call_expression(&mut self, call: &CallExpression<'a>) {
        if self.form == Form::CommonJs {
            if self.is(&call.callee, "require")
                && let Some(specifier) = call.arguments.first().and_then(argument_text)
            {
                let (offset, guarded) = (call.span.start as usize, self.guards > 0);
                self.scanned.requires.push(Require { specifier, offset, guarded });
            }
            self.called(call);
        }
        walk::walk_call_expression(self, call);
    }

    fn visit_import_expression(&mut self, import: &ImportExpression<'a>) {
        let specifier = match &import.source {
            Expression::StringLiteral(literal) => Some(literal.value.to_string()),
            Expression::TemplateLiteral(literal) if literal.expressions.is_empty() => {
                literal.quasis.first().and_then(|quasi| quasi.value.cooked).map(|text| text.to_string())
            }
            _ => None,
        };
        self.scanned.dynamic.push(DynamicImport { specifier, offset: import.span.start as usize });
        walk::walk_import_expression(self, import);
    }

    fn visit_expression(&mut self, expression: &Expression<'a>) {
        if is_node_env(expression, self.scoping) {
            let span = expression.span();
            let width = span.size() as usize;
            // Spaces keep the columns. A text with a line break or comment inside stays as it is.
            if &self.source[span.start as usize..span.end as usize] == "process.env.NODE_ENV" {
                self.scanned.edits.push((span, format!("{NODE_ENV_TEXT:width$}")));
                return;
            }
        }
        walk::walk_expression(self, expression);
    }

    fn visit_identifier_reference(&mut self, identifier: &IdentifierReference<'a>) {
        self.scanned.globals.extend(self.common_js_global(identifier));
    }

    fn visit_unary_expression(&mut self, unary: &UnaryExpression<'a>) {
        if unary.operator == UnaryOperator::Typeof
            && let Expression::Identifier(identifier) = &unary.argument
        {
            self.scanned.optional.extend(self.common_js_global(identifier));
        }
        walk::walk_unary_expression(self, unary);
    }

    fn visit_static_member_expression(&mut self, member: &StaticMemberExpression<'a>) {
        if let Expression::Identifier(object) = &member.object
            && let Some(reference) = object.reference_id.get()
            && let Some(symbol) = self.scoping.get_reference(reference).symbol_id()
            && let Some(namespace) = self.namespaces.get_mut(&symbol)
        {
            namespace.uses += 1;
            namespace.members.push(member.property.name.to_string());
        }
        walk::walk_static_member_expression(self, member);
    }

    fn visit_assignment_expression(&mut self, assignment: &AssignmentExpression<'a>) {
        if self.form == Form::CommonJs
            && let AssignmentTarget::StaticMemberExpression(member) = &assignment.left
        {
            if self.is_exports(&member.object) {
                self.scanned.exports.insert(member.property.name.to_string());
            } else if self.is_module_exports(member) {
                if let Expression::ObjectExpression(object) = &assignment.right {
                    let keys = object.properties.iter().filter_map(|property| match property {
                        ObjectPropertyKind::ObjectProperty(property) => property.key.static_name(),
                        ObjectPropertyKind::SpreadProperty(_) => None,
                    });
                    self.scanned.exports.extend(keys.map(|key| key.to_string()));
                } else if let Some(specifier) = self.required(&assignment.right) {
                    self.scanned.passed_on.push(specifier);
                }
            }
        }
        walk::walk_assignment_expression(self, assignment);
    }
}
