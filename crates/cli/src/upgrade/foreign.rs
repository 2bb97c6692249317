//! Files that are no program for this machine: what they are, and what is needed.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use object::elf::{FileHeader32, FileHeader64};
use object::read::elf::{FileHeader, ProgramHeader};
use object::{Endianness, FileKind, ReadCache};

/// Bytes at the start of a file from which its kind is known.
const START_BYTES: usize = 64;
/// Maximum length of the path of a dynamic linker, in bytes.
const MAX_LINKER_BYTES: usize = 256;

/// A file that does not run here.
#[derive(Debug, thiserror::Error)]
pub enum ForeignProgram {
    /// The file cannot be read.
    #[error("it cannot be read: {0}")]
    Read(#[from] io::Error),
    /// It is no program in machine code.
    #[error(
        "it is {found}, and not a program for this machine, which is {needed}; give edgefaas-VERSION-{}.gz of the release",
        std::env::consts::ARCH
    )]
    NotElf {
        /// The file.
        found: Content,
        /// This machine.
        needed: Machine,
    },
    /// Its ELF headers are damaged.
    #[error("its ELF headers are damaged: {0}")]
    Damaged(object::Error),
    /// The program is for another kind of machine.
    #[error(
        "it is a program for {found}, and not for this machine, which is {needed}; give edgefaas-VERSION-{}.gz of the release",
        std::env::consts::ARCH
    )]
    Machine {
        /// Machine of the program.
        found: Machine,
        /// This machine.
        needed: Machine,
    },
    /// The program is for a system with another C library.
    #[error("it needs the dynamic linker {} ({}), which this system does not have: the system has {}; take the program for that one", found.display(), libc(found), needed.as_ref().map_or("none".into(), |needed| format!("{} ({})", needed.display(), libc(needed))))]
    Linker {
        /// Dynamic linker of the program.
        found: PathBuf,
        /// That of this program; `None` if it is linked statically.
        needed: Option<PathBuf>,
    },
}

/// What the first bytes of a file say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// It is empty.
    Empty,
    /// It starts with `!<arch>` and `debian-binary`.
    DebianPackage,
    /// It starts with `#!`.
    Script,
    /// Gzip data in gzip data, or another compression.
    Packed(&'static str),
    /// WebAssembly.
    WebAssembly,
    /// Anything else, with its first 4 bytes.
    Other([u8; 4]),
}

impl Content {
    fn of(start: &[u8]) -> Self {
        match start {
            [] => Self::Empty,
            [b'#', b'!', ..] => Self::Script,
            [0x1f, 0x8b, ..] => Self::Packed("gzip"),
            [b'P', b'K', 3, 4, ..] => Self::Packed("zip"),
            [0xfd, b'7', b'z', b'X', b'Z', ..] => Self::Packed("xz"),
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Self::Packed("zstd"),
            [0, b'a', b's', b'm', ..] => Self::WebAssembly,
            _ if start.starts_with(b"!<arch>\ndebian-binary") => Self::DebianPackage,
            _ => {
                let mut first = [0; 4];
                first.iter_mut().zip(start).for_each(|(to, from)| *to = *from);
                Self::Other(first)
            }
        }
    }
}

impl fmt::Display for Content {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => write!(out, "an empty file"),
            Self::DebianPackage => write!(out, "a Debian package"),
            Self::Script => write!(out, "a script"),
            Self::Packed(format) => write!(out, "a packed file ({format})"),
            Self::WebAssembly => write!(out, "WebAssembly"),
            Self::Other(first) => write!(out, "a file that starts with {first:02x?}"),
        }
    }
}

/// Kind of processor that a program is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Machine {
    /// `e_machine` of its ELF header.
    number: u16,
    /// The class of the file.
    bits: u8,
    is_little_endian: bool,
}

impl fmt::Display for Machine {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { number, bits, is_little_endian } = self;
        match *number {
            object::elf::EM_386 => write!(out, "32-bit x86")?,
            object::elf::EM_X86_64 => write!(out, "x86_64")?,
            object::elf::EM_ARM => write!(out, "32-bit ARM")?,
            object::elf::EM_AARCH64 => write!(out, "64-bit ARM (aarch64)")?,
            object::elf::EM_RISCV => write!(out, "{bits}-bit RISC-V")?,
            object::elf::EM_MIPS => write!(out, "{bits}-bit MIPS")?,
            object::elf::EM_PPC | object::elf::EM_PPC64 => write!(out, "{bits}-bit PowerPC")?,
            object::elf::EM_S390 => write!(out, "{bits}-bit IBM Z")?,
            object::elf::EM_LOONGARCH => write!(out, "{bits}-bit LoongArch")?,
            number => write!(out, "the {bits}-bit machine {number} of ELF")?,
        }
        match is_little_endian {
            true => Ok(()),
            false => write!(out, ", big-endian"),
        }
    }
}

/// Machine and dynamic linker of a program.
struct Headers {
    machine: Machine,
    linker: Option<PathBuf>,
}

/// Checks that a program is for this machine, and that this system has its dynamic linker.
///
/// # Errors
/// See [`ForeignProgram`].
pub fn check(program: &Path) -> Result<(), ForeignProgram> {
    let own = headers(&File::open("/proc/self/exe")?, None)?;
    let Headers { machine, linker } = headers(&File::open(program)?, Some(own.machine))?;
    if machine != own.machine {
        return Err(ForeignProgram::Machine { found: machine, needed: own.machine });
    }
    match linker {
        Some(found) if !found.exists() => Err(ForeignProgram::Linker { found, needed: own.linker }),
        _ => Ok(()),
    }
}

/// The headers of a program; `needed` is this machine, for the error.
fn headers(file: &File, needed: Option<Machine>) -> Result<Headers, ForeignProgram> {
    let mut start = [0; START_BYTES];
    let length = file.read_at(&mut start, 0)?;
    let start = &start[..length];
    let data = ReadCache::new(file.try_clone()?);
    let unknown = Machine { number: 0, bits: 64, is_little_endian: true };
    match FileKind::parse(&data) {
        Ok(FileKind::Elf64) => elf::<FileHeader64<Endianness>>(&data),
        Ok(FileKind::Elf32) => elf::<FileHeader32<Endianness>>(&data),
        _ => Err(ForeignProgram::NotElf { found: Content::of(start), needed: needed.unwrap_or(unknown) }),
    }
}

fn elf<H: FileHeader<Endian = Endianness>>(data: &ReadCache<File>) -> Result<Headers, ForeignProgram> {
    let header = H::parse(data).map_err(ForeignProgram::Damaged)?;
    let endian = header.endian().map_err(ForeignProgram::Damaged)?;
    let machine = Machine {
        number: header.e_machine(endian),
        bits: if header.is_class_64() { 64 } else { 32 },
        is_little_endian: header.is_little_endian(),
    };
    let mut linker = None;
    for segment in header.program_headers(endian, data).map_err(ForeignProgram::Damaged)? {
        if segment.p_type(endian) == object::elf::PT_INTERP
            && segment.p_filesz(endian).into() > MAX_LINKER_BYTES as u64
        {
            continue;
        }
        if let Some(path) = segment.interpreter(endian, data).map_err(ForeignProgram::Damaged)? {
            linker = Some(PathBuf::from(String::from_utf8_lossy(path).into_owned()));
        }
    }
    Ok(Headers { machine, linker })
}

/// The C library whose dynamic linker this is.
fn libc(linker: &Path) -> &'static str {
    let name = linker.file_name().unwrap_or_default().to_string_lossy();
    match &*name {
        name if name.starts_with("ld-musl") => "of musl",
        name if name.starts_with("ld-linux") => "of glibc",
        _ => "of another system",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(bytes: &[u8]) -> String {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("program");
        std::fs::write(&path, bytes).unwrap();
        check(&path).map_or_else(|error| error.to_string(), |()| "ok".to_owned())
    }

    fn own() -> Vec<u8> {
        std::fs::read("/proc/self/exe").unwrap()
    }

    #[test]
    fn a_program_of_this_machine_is_accepted_and_others_are_named() {
        assert_eq!(checked(&own()), "ok");
        let machine = |number: u16| {
            let mut program = own();
            program[18..20].copy_from_slice(&number.to_le_bytes());
            checked(&program)
        };
        let here = std::env::consts::ARCH;
        for (number, name) in
            [(243, "64-bit RISC-V"), (40, "32-bit ARM"), (9999, "the 64-bit machine 9999 of ELF")]
        {
            let said = machine(number);
            assert!(said.contains(&format!("a program for {name}, and not for this machine")), "{said}");
            assert!(
                said.contains(here)
                    && said.ends_with(&format!("edgefaas-VERSION-{here}.gz of the release")),
                "{said}"
            );
        }
        for (bytes, name) in [
            (&b"#!/bin/sh\necho edgefaas 1.0.0\n"[..], "a script"),
            (b"", "an empty file"),
            (b"!<arch>\ndebian-binary   0", "a Debian package"),
            (b"\x1f\x8b\x08", "a packed file (gzip)"),
            (b"text", "a file that starts with [74, 65, 78, 74]"),
        ] {
            let said = checked(bytes);
            assert!(said.contains(&format!("it is {name}, and not a program for this machine")), "{said}");
        }
        assert!(checked(&own()[..30]).contains("ELF headers are damaged"));
    }

    #[test]
    fn another_c_library_is_named() {
        let mut program = own();
        let Some(own) = headers(&File::open("/proc/self/exe").unwrap(), None).unwrap().linker else {
            return;
        };
        let own = own.to_str().unwrap();
        let at = program.windows(own.len()).position(|part| part == own.as_bytes()).unwrap();
        let other = format!("{:\0<width$}", "/lib/ld-musl-x.so.1", width = own.len());
        program[at..at + own.len()].copy_from_slice(&other.as_bytes()[..own.len()]);
        let said = checked(&program);
        assert!(
            said.contains(
                "the dynamic linker /lib/ld-musl-x.so.1 (of musl), which this system does not have"
            ),
            "{said}"
        );
        assert!(said.contains(&format!("the system has {own} (of glibc)")), "{said}");
    }
}
