//! The only unsafe code: memory and calls across the edge of the isolate.
//!
//! The isolate has one thread, and most live for one invocation and are then thrown away with all their memory. Buffers
//! that cross the edge stay until [`reset`], which comes before another invocation of the same isolate.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout};
use std::ffi::c_void;

use edgefaas_js_abi::{self as abi, Answer, INPUT_BYTES, Request, Start};
use rquickjs::{ArrayBuffer, Ctx, Object, TypedArray, Value, qjs};

unsafe extern "C" {
    fn malloc(size: usize) -> *mut c_void;
    fn calloc(count: usize, size: usize) -> *mut c_void;
    fn realloc(pointer: *mut c_void, size: usize) -> *mut c_void;
    fn aligned_alloc(align: usize, size: usize) -> *mut c_void;
    fn free(pointer: *mut c_void);
}

/// QuickJS's own allocator for Rust as well: one heap, so fewer pages become dirty.
struct Libc;

/// What `malloc` aligns to.
const MALLOC_ALIGN: usize = 8;

// SAFETY: every pointer comes from libc's allocator with the size and alignment asked for, and is freed
// by the same.
unsafe impl GlobalAlloc for Libc {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: plain calls of libc; `aligned_alloc` wants a size that is a multiple of the alignment.
        unsafe {
            if layout.align() <= MALLOC_ALIGN {
                malloc(layout.size()).cast()
            } else {
                aligned_alloc(layout.align(), layout.size().next_multiple_of(layout.align())).cast()
            }
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        unsafe {
            if layout.align() <= MALLOC_ALIGN {
                calloc(1, layout.size()).cast()
            } else {
                let pointer = self.alloc(layout);
                if !pointer.is_null() {
                    pointer.write_bytes(0, layout.size());
                }
                pointer
            }
        }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: as above; `realloc` keeps the alignment of `malloc` only, so others are moved by hand.
        unsafe {
            if layout.align() <= MALLOC_ALIGN {
                return realloc(pointer.cast(), new_size).cast();
            }
            let new = self.alloc(Layout::from_size_align_unchecked(new_size, layout.align()));
            if !new.is_null() {
                new.copy_from_nonoverlapping(pointer, layout.size().min(new_size));
                self.dealloc(pointer, layout);
            }
            new
        }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, _layout: Layout) {
        // SAFETY: the pointer came from one of the functions above.
        unsafe { free(pointer.cast()) }
    }
}

#[global_allocator]
static ALLOCATOR: Libc = Libc;

/// Makes the heap grow by `spare` now, so that it need not while the handler runs, and fills every hole
/// below: what an invocation allocates then lies together, on few pages that have to be copied.
pub fn seal_heap(spare: usize) {
    const LARGEST_HOLE: usize = 64 * 1024;
    const SMALLEST_HOLE: usize = 8;
    // SAFETY: blocks are taken; those that fill holes are kept for good, the others are given back.
    unsafe {
        let fresh = std::hint::black_box(malloc(spare));
        clear(fresh, spare);
        free(fresh);
        let mut size = LARGEST_HOLE;
        while size >= SMALLEST_HOLE {
            let block = std::hint::black_box(malloc(size));
            if block.is_null() || block >= fresh {
                free(block);
                // Halves for the large ones, every size that there is a bin for below.
                size = if size > 512 { size / 2 } else { size - 8 };
            } else {
                clear(block, size);
            }
        }
    }
}

/// Overwrites what was left in a block: pages of zeros take no room in a snapshot.
///
/// # Safety
/// `block` has room for `size` bytes, or is null.
unsafe fn clear(block: *mut c_void, size: usize) {
    if !block.is_null() {
        // SAFETY: see above.
        unsafe { block.cast::<u8>().write_bytes(0, size) };
    }
}

/// An `Uint8Array` over `bytes` bytes at `address`, which lie outside of the heap and stay for good.
pub fn view<'js>(ctx: &Ctx<'js>, address: u32, bytes: u32) -> rquickjs::Result<Value<'js>> {
    let no_opaque = std::ptr::null_mut();
    // SAFETY: the host says what lies in this memory; nobody frees it, so that there is no function for that. An error is
    // an exception that waits to be thrown.
    let buffer = unsafe {
        let context = ctx.as_raw().as_ptr();
        let buffer =
            qjs::JS_NewArrayBuffer(context, address as *mut u8, bytes as _, 0, None, no_opaque, false);
        if qjs::JS_IsException(buffer) {
            return Err(rquickjs::Error::Exception);
        }
        Value::from_raw(ctx.clone(), buffer)
    };
    let buffer = ArrayBuffer::from_value(buffer).ok_or(rquickjs::Error::Unknown)?;
    TypedArray::<u8>::from_arraybuffer(buffer).map(TypedArray::into_value)
}

/// A promise of `value`, fulfilled already unless that is a thenable.
pub fn fulfilled<'js>(ctx: &Ctx<'js>, value: &Value<'js>) -> rquickjs::Result<Value<'js>> {
    // SAFETY: the value is alive for the call, which takes a reference of its own; an error is an exception that waits to
    // be thrown.
    unsafe {
        let promise = qjs::JS_NewSettledPromise(ctx.as_raw().as_ptr(), false, value.as_raw());
        if qjs::JS_IsException(promise) {
            return Err(rquickjs::Error::Exception);
        }
        Ok(Value::from_raw(ctx.clone(), promise))
    }
}

/// A file's text that is read once. It is gone from the memory then, and from every snapshot of it.
pub trait ReadOnce: Sync {
    /// The text; empty from the second time on.
    fn take(&self) -> String;
}

/// Holds such a text.
pub struct Text<const N: usize>(std::cell::UnsafeCell<[u8; N]>);
// SAFETY: the isolate has one thread.
unsafe impl<const N: usize> Sync for Text<N> {}

impl<const N: usize> Text<N> {
    /// From the bytes of a file.
    pub const fn new(bytes: [u8; N]) -> Self {
        Self(std::cell::UnsafeCell::new(bytes))
    }
}

impl<const N: usize> ReadOnce for Text<N> {
    fn take(&self) -> String {
        // SAFETY: nobody else refers to the bytes, as only copies of them leave this function.
        let bytes = unsafe { self.0.get().replace([0; N]) };
        let text = String::from_utf8(bytes.to_vec()).unwrap_or_default();
        if text.starts_with('\0') { String::new() } else { text }
    }
}

/// Evaluates a script whose functions do not keep their text.
pub fn eval_without_text<'js>(ctx: &Ctx<'js>, source: &str, file: &str) -> rquickjs::Result<Value<'js>> {
    let source = std::ffi::CString::new(source).map_err(|_| rquickjs::Error::Unknown)?;
    let file = std::ffi::CString::new(file).map_err(|_| rquickjs::Error::Unknown)?;
    let raw = ctx.as_raw().as_ptr();
    // SAFETY: the strings are alive and end with a NUL, which is not counted; each value is given away or
    // freed once, and the bytecode comes from this very engine.
    unsafe {
        let flags = qjs::JS_EVAL_TYPE_GLOBAL | qjs::JS_EVAL_FLAG_STRICT | qjs::JS_EVAL_FLAG_COMPILE_ONLY;
        let compiled =
            qjs::JS_Eval(raw, source.as_ptr(), source.as_bytes().len() as _, file.as_ptr(), flags as i32);
        if qjs::JS_IsException(compiled) {
            return Err(rquickjs::Error::Exception);
        }
        let mut len = 0;
        let flags = qjs::JS_WRITE_OBJ_BYTECODE | qjs::JS_WRITE_OBJ_STRIP_SOURCE;
        let bytecode = qjs::JS_WriteObject(raw, &mut len, compiled, flags as i32);
        qjs::JS_FreeValue(raw, compiled);
        if bytecode.is_null() {
            return Err(rquickjs::Error::Exception);
        }
        let function = qjs::JS_ReadObject(raw, bytecode, len, qjs::JS_READ_OBJ_BYTECODE as i32);
        qjs::js_free(raw, bytecode.cast());
        if qjs::JS_IsException(function) {
            return Err(rquickjs::Error::Exception);
        }
        let value = qjs::JS_EvalFunction(raw, function);
        if qjs::JS_IsException(value) {
            return Err(rquickjs::Error::Exception);
        }
        Ok(Value::from_raw(ctx.clone(), value))
    }
}

mod host {
    #[link(wasm_import_module = "edgefaas")]
    unsafe extern "C" {
        pub fn call(pointer: *const u8, len: usize, number: *mut i64) -> u32;
        pub fn start(pointer: *const u8, len: usize) -> i32;
        pub fn take(pointer: *mut u8);
        pub fn random(pointer: *mut u8, len: usize);
    }
}

/// What most requests need; more is allocated as it comes.
const SMALL_REQUEST_BYTES: usize = 64;

/// Carries out `request` at once.
pub fn call(request: &Request<'_>) -> Answer<'static> {
    let room = Vec::with_capacity(SMALL_REQUEST_BYTES);
    let message = abi::encode_into(request, room).expect("requests can be encoded");
    let mut number = 0;
    // SAFETY: the host reads exactly the bytes of `message`, and writes nothing but `number`.
    match unsafe { host::call(message.as_ptr(), message.len(), &mut number) } {
        abi::NUMBER => Answer::Integer(number),
        len => take(len as usize),
    }
}

/// Calls `read` with the text of a library, which is freed afterwards. None if the node has no such library.
pub fn with_library<R>(name: &str, read: impl FnOnce(&str) -> R) -> Option<R> {
    with_answer(&Request::Library { name }, |answer| match answer {
        Answer::Text(text) => Some(read(text)),
        _ => None,
    })
}

/// Calls `read` with the answer to `request`, which is freed afterwards.
pub fn with_answer<R>(request: &Request<'_>, read: impl FnOnce(Answer<'_>) -> R) -> R {
    let message = abi::encode(request).expect("requests can be encoded");
    let mut number = 0;
    // SAFETY: the host reads exactly the bytes of `message`, and writes nothing but `number`.
    match unsafe { host::call(message.as_ptr(), message.len(), &mut number) } {
        abi::NUMBER => read(Answer::Integer(number)),
        0 => read(Answer::Nothing),
        len => {
            let mut bytes = vec![0_u8; len as usize];
            // SAFETY: `bytes` has the room that the host announced.
            unsafe { host::take(bytes.as_mut_ptr()) };
            read(abi::decode(&bytes).expect("the host's answers can be decoded"))
        }
    }
}

/// A string's text, which is not copied if it is ASCII.
pub struct Utf8<'js>(rquickjs::CString<'js>);

impl<'js> Utf8<'js> {
    /// The text of `string`.
    pub fn of(string: rquickjs::String<'js>) -> rquickjs::Result<Self> {
        let text = Self(string.to_cstring()?);
        // rquickjs takes every string for UTF-8, but one with a lone surrogate is not.
        std::str::from_utf8(text.bytes())?;
        Ok(text)
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: the string is alive as long as `self` is.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast(), self.0.len()) }
    }
}

impl std::ops::Deref for Utf8<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        // Looked at when it was made.
        self.0.as_str()
    }
}

/// Begins `start`; gives its ticket, or the refusal.
pub fn start(start: &Start<'_>) -> Result<u32, Answer<'static>> {
    let message = abi::encode(start).expect("requests can be encoded");
    // SAFETY: the host reads exactly the bytes of `message`.
    let started = unsafe { host::start(message.as_ptr(), message.len()) };
    match u32::try_from(started) {
        Ok(ticket) => Ok(ticket),
        Err(_) => Err(take(started.unsigned_abs() as usize)),
    }
}

fn take(len: usize) -> Answer<'static> {
    if len == 0 {
        return Answer::Nothing;
    }
    let bytes = keep(vec![0_u8; len]);
    // SAFETY: `bytes` has the room that the host announced.
    unsafe { host::take(bytes.as_mut_ptr()) };
    abi::decode(bytes).expect("the host's answers can be decoded")
}

/// Random bytes from the host's operating system.
pub fn random(len: usize) -> Vec<u8> {
    let mut bytes = vec![0_u8; len];
    // SAFETY: `bytes` has room for `len` bytes.
    unsafe { host::random(bytes.as_mut_ptr(), len) };
    bytes
}

/// A copy of what a view shows; empty if its buffer is detached.
pub fn copy_view(view: &TypedArray<'_, u8>) -> Vec<u8> {
    // SAFETY: no JavaScript runs while the bytes are copied.
    unsafe { view.as_bytes() }.unwrap_or_default().to_vec()
}

/// A copy of what a buffer holds; empty if it is detached.
pub fn copy_buffer(buffer: &ArrayBuffer<'_>) -> Vec<u8> {
    // SAFETY: no JavaScript runs while the bytes are copied.
    unsafe { buffer.as_bytes() }.unwrap_or_default().to_vec()
}

/// Whether `object` is an `ArrayBuffer`; asking rquickjs leaves an exception behind if it is not.
pub fn is_array_buffer(object: &Object<'_>) -> bool {
    // SAFETY: the value is alive, and only its class is looked at.
    unsafe { qjs::JS_IsArrayBuffer(object.as_value().as_raw()) }
}

/// Buffers that have crossed the edge.
struct Crossed(std::cell::UnsafeCell<Vec<Box<[u8]>>>);
// SAFETY: the isolate has one thread.
unsafe impl Sync for Crossed {}
static CROSSED: Crossed = Crossed(std::cell::UnsafeCell::new(Vec::new()));

/// How many buffers an invocation may keep without the list having to grow.
const CROSSED_ROOM: usize = 32;

/// Keeps a buffer until the next [`reset`].
fn keep(buffer: Vec<u8>) -> &'static mut [u8] {
    // SAFETY: nothing else has a reference to the list, whose boxes do not move when it grows.
    let crossed = unsafe { &mut *CROSSED.0.get() };
    let mut buffer = buffer.into_boxed_slice();
    // SAFETY: the box lives until `reset`, by which time nothing refers to it any more.
    let bytes = unsafe { std::slice::from_raw_parts_mut(buffer.as_mut_ptr(), buffer.len()) };
    crossed.push(buffer);
    bytes
}

/// Frees a buffer before the next [`reset`]. Bodies of answers come in many large buffers.
///
/// # Safety
/// Nothing refers to the buffer at `pointer` any more.
unsafe fn release(pointer: *const u8) {
    // SAFETY: see `keep`.
    let crossed = unsafe { &mut *CROSSED.0.get() };
    if let Some(index) = crossed.iter().rposition(|buffer| buffer.as_ptr() == pointer) {
        crossed.swap_remove(index);
    }
}

/// Makes room for the buffers of an invocation.
fn init() {
    // SAFETY: see `keep`.
    unsafe { (*CROSSED.0.get()).reserve(CROSSED_ROOM) };
}

struct Input(std::cell::UnsafeCell<[u8; INPUT_BYTES]>);
// SAFETY: the isolate has one thread.
unsafe impl Sync for Input {}
static INPUT: Input = Input(std::cell::UnsafeCell::new([0; INPUT_BYTES]));

#[unsafe(no_mangle)]
extern "C" fn abi_version() -> u32 {
    abi::VERSION
}

#[unsafe(no_mangle)]
extern "C" fn engine_init() {
    init();
    crate::engine::init();
}

#[unsafe(no_mangle)]
extern "C" fn input() -> *mut u8 {
    INPUT.0.get().cast()
}

#[unsafe(no_mangle)]
extern "C" fn alloc(len: usize) -> *mut u8 {
    keep(vec![0_u8; len]).as_mut_ptr()
}

/// # Safety
/// `pointer` came from `alloc(len)` or `input()` and the host has filled it; it is not written again.
unsafe fn message(pointer: *const u8, len: usize) -> &'static [u8] {
    // SAFETY: see above; the memory stays until `reset`.
    unsafe { std::slice::from_raw_parts(pointer, len) }
}

/// Gives the address and length of a message that stays where it is.
fn answer(message: Vec<u8>) -> u64 {
    let message = keep(message);
    ((message.as_ptr() as u64) << 32) | message.len() as u64
}

#[unsafe(no_mangle)]
unsafe extern "C" fn load(pointer: *const u8, len: usize) -> u64 {
    // SAFETY: the host keeps to the contract of `message`.
    answer(crate::engine::load(unsafe { message(pointer, len) }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn invoke(pointer: *const u8, len: usize) -> u64 {
    // SAFETY: the host keeps to the contract of `message`.
    answer(crate::engine::invoke(unsafe { message(pointer, len) }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn resolve(ticket: u32, pointer: *const u8, len: usize) {
    // SAFETY: the host keeps to the contract of `message`; the engine has copied what it needs of it.
    unsafe {
        crate::engine::resolve(ticket, message(pointer, len));
        release(pointer);
    }
}

#[unsafe(no_mangle)]
extern "C" fn run_jobs() -> u64 {
    answer(crate::engine::run_jobs())
}

#[unsafe(no_mangle)]
extern "C" fn reset() {
    crate::engine::reset();
    // SAFETY: see `keep`; the engine has forgotten the invocation, which was the last to refer to the buffers.
    unsafe { (*CROSSED.0.get()).clear() };
}
