//! A function that does what its caller names, and it is nothing good.

use edgefaas::prelude::*;

#[edgefaas::function]
fn misbehave(event: Event, _context: Context) -> Result<String, Error> {
    println!("from stdout: {}", event.text()?);
    log::info!("from the log: {}", event.text()?);
    match event.text()? {
        "fail" => return Err(Error::new("as asked")),
        "panic" => panic!("as asked"),
        "exit" => std::process::exit(1),
        "trap" => std::process::abort(),
        "loop" => loop {
            std::hint::black_box(0);
        },
        "memory" => {
            let mut all = Vec::new();
            loop {
                all.push(std::hint::black_box(vec![1_u8; 1 << 20]));
            }
        }
        "stack" => return Ok(deeper(0).to_string()),
        "large" => return Ok("x".repeat((1 << 20) + 1)),
        _ => {}
    }
    Ok("well".into())
}

#[inline(never)]
fn deeper(level: u64) -> u64 {
    let room = std::hint::black_box([level; 64]);
    match std::hint::black_box(level) {
        u64::MAX => 0,
        level => deeper(level + 1) + room[(level % 64) as usize],
    }
}
