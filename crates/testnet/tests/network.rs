//! The network as its users see it: times, rates, losses and cuts, measured with sockets of the system.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use edgefaas_testnet::{Bandwidth, Conditions, Network, Topology, isolated};

const PATIENCE: Duration = Duration::from_secs(60);
const PORT: u16 = 4000;

/// Hosts `a` and `b` in zone `north`, `c` in zone `south`.
fn network() -> Network {
    let topology = Topology::new().zone("north", &["a", "b"]).zone("south", &["c"]).seed(11);
    topology.build().unwrap()
}

/// A connection from one host to a listener on another, and its other end.
fn connection(network: &Network, from: &str, to: &str) -> (TcpStream, TcpStream) {
    let server = network.host(to);
    let listener = server.enter(|| TcpListener::bind((server.address(), PORT)).unwrap());
    let client = network.host(from).connect(listener.local_addr().unwrap()).unwrap();
    let (accepted, _) = listener.accept().unwrap();
    for stream in [&client, &accepted] {
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
    }
    (client, accepted)
}

/// Answers every byte until the connection ends.
fn echo(mut stream: TcpStream) {
    std::thread::spawn(move || {
        let mut byte = [0];
        while stream.read_exact(&mut byte).is_ok() && stream.write_all(&byte).is_ok() {}
    });
}

/// The shortest round trip of one byte. Others take longer when both cores are busy: if all of `count` do, more are made.
fn round_trip(client: &mut TcpStream, count: usize, most: Duration) -> Duration {
    let begun = Instant::now();
    let mut shortest = Duration::MAX;
    for number in 0.. {
        if number >= count && (shortest < most || begun.elapsed() > PATIENCE) {
            break;
        }
        let begun = Instant::now();
        client.write_all(&[1]).unwrap();
        client.read_exact(&mut [0]).unwrap();
        shortest = shortest.min(begun.elapsed());
    }
    shortest
}

#[test]
fn a_trunk_of_41_ms_each_way_makes_a_round_trip_of_82_ms() {
    isolated(|| {
        let network = network();
        network.trunk("north", "south").set(Conditions::delayed(Duration::from_millis(41)));
        let (mut client, server) = connection(&network, "a", "c");
        echo(server);
        let (least, most) = (Duration::from_millis(82), Duration::from_millis(84));
        let took = round_trip(&mut client, 21, most);
        println!("round trip between zones: {took:?}");
        assert!((least..most).contains(&took), "{took:?}");
        let (mut client, server) = connection(&network, "a", "b");
        echo(server);
        let most = Duration::from_millis(2);
        let took = round_trip(&mut client, 1001, most);
        println!("round trip in a zone: {took:?}");
        assert!(took < most, "{took:?}");
    });
}

#[test]
fn a_rate_of_a_megabyte_a_second_is_one() {
    isolated(|| {
        const BYTES: usize = 3_000_000;
        let measured = || {
            let network = network();
            network.link("c").outbound().set(Conditions::default().with_rate(1_000_000));
            let (mut client, mut server) = connection(&network, "c", "a");
            let begun = Instant::now();
            let sending = std::thread::spawn(move || client.write_all(&vec![7; BYTES]).map(|()| client));
            server.read_exact(&mut vec![0; BYTES]).unwrap();
            let rate = BYTES as f64 / begun.elapsed().as_secs_f64();
            drop(sending.join().unwrap().unwrap());
            println!("payload: {rate:.0} bytes a second");
            assert!(rate < 1_100_000.0, "{rate:.0} bytes a second");
            (network, rate)
        };
        let (mut network, mut rate) = measured();
        // A pause of a thread makes a slower one, and never a faster one.
        for _ in 0..4 {
            if rate < 900_000.0 {
                (network, rate) = measured();
            }
        }
        assert!(rate >= 900_000.0, "{rate:.0} bytes a second");
        let sent = network.trunk("south", "north").outbound().traffic();
        assert!((BYTES as u64..BYTES as u64 * 11 / 10).contains(&sent.bytes), "{sent:?}");
        assert_eq!(network.link("b").inbound().traffic().packets, 0, "other hosts see nothing of it");
    });
}

#[test]
fn a_connection_waits_at_a_cut_and_goes_on_after_it() {
    isolated(|| {
        let network = network();
        let trunk = network.trunk("north", "south");
        let (mut client, mut server) = connection(&network, "a", "c");
        let mut byte = [0];
        client.write_all(&[1]).unwrap();
        server.read_exact(&mut byte).unwrap();
        trunk.cut();
        client.write_all(&[2]).unwrap();
        server.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        let error = server.read_exact(&mut byte).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{error}");
        // TCP sends it again and again.
        let begun = Instant::now();
        while trunk.outbound().traffic().cut == 0 {
            assert!(begun.elapsed() < PATIENCE, "nothing met the cut");
            std::thread::yield_now();
        }
        // The other zone is not concerned, and neither are loopback addresses of hosts behind the cut.
        drop(connection(&network, "a", "b"));
        let host = network.host("c");
        let local = host.enter(|| TcpListener::bind("127.0.0.1:0").unwrap());
        host.connect(local.local_addr().unwrap()).unwrap();
        trunk.restore();
        server.set_read_timeout(Some(PATIENCE)).unwrap();
        server.read_exact(&mut byte).unwrap();
        assert_eq!(byte, [2]);
    });
}

/// Datagrams that arrive of `count` with numbers, one after another.
fn arriving(network: &Network, count: u32) -> Vec<u32> {
    let bind = |name: &str| {
        let host = network.host(name);
        host.enter(|| UdpSocket::bind((host.address(), PORT)).unwrap())
    };
    let (from, to) = (bind("a"), bind("c"));
    to.set_read_timeout(Some(PATIENCE)).unwrap();
    let address = to.local_addr().unwrap();
    let mut arrived = Vec::new();
    let mut word = [0; 4];
    for number in 0..count {
        let dropped_before = network.trunk("north", "south").outbound().traffic().lost;
        from.send_to(&number.to_be_bytes(), address).unwrap();
        // Each arrives or is lost before the next is sent: no queue of the system decides.
        while network.trunk("north", "south").outbound().traffic().lost == dropped_before {
            if network.link("c").inbound().traffic().packets > arrived.len() as u64 {
                to.recv(&mut word).unwrap();
                arrived.push(u32::from_be_bytes(word));
                break;
            }
            std::thread::yield_now();
        }
    }
    arrived
}

#[test]
fn losses_are_those_of_the_seed() {
    isolated(|| {
        let arrived = || {
            let network = network();
            network.trunk("north", "south").outbound().set(Conditions::default().with_loss(100));
            let arrived = arriving(&network, 1000);
            assert_eq!(
                network.trunk("north", "south").outbound().traffic().lost,
                1000 - arrived.len() as u64
            );
            arrived
        };
        let first = arrived();
        println!("{} of 1,000 datagrams arrived", first.len());
        assert!((860..940).contains(&first.len()));
        assert_eq!(first, arrived());
    });
}

#[test]
fn a_full_queue_drops() {
    isolated(|| {
        let bandwidth = Some(Bandwidth { bytes_per_second: 10_000, queue_bytes: 10_000 });
        let dropped = || {
            let network = network();
            let outbound = network.link("a").outbound();
            outbound.set(Conditions { bandwidth, ..Conditions::default() });
            let host = network.host("a");
            let socket = host.enter(|| UdpSocket::bind((host.address(), PORT)).unwrap());
            for _ in 0..100 {
                socket.send_to(&[0; 972], (network.host("c").address(), PORT)).unwrap();
            }
            let begun = Instant::now();
            while outbound.traffic().overflowed + outbound.traffic().packets < 100 {
                assert!(begun.elapsed() < PATIENCE, "{:?}", outbound.traffic());
                std::thread::yield_now();
            }
            outbound.traffic().overflowed
        };
        let mut counts = Vec::new();
        // The queue sends on while the thread that fills it pauses.
        while counts.len() < 5 && counts.last().is_none_or(|count| *count < 80) {
            counts.push(dropped());
        }
        assert!(counts.last().is_some_and(|count| *count >= 80), "of 100 packets {counts:?} were dropped");
    });
}

#[test]
fn processes_of_hosts_see_their_own_network_and_end_with_it() {
    isolated(|| {
        let network = network();
        let mut command = Command::new("ip");
        command.args(["-4", "-o", "addr", "show"]);
        let output = network.host("c").output(command).unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("10.77.1.1/16") && !text.contains("10.77.0."), "{text}");
        let mut command = Command::new("sleep");
        command.arg("1000").stdin(Stdio::null());
        let mut child = network.host("a").spawn(command).unwrap();
        assert!(child.try_wait().unwrap().is_none());
        drop(network);
        assert!(!child.wait().unwrap().success());
    });
}

/// Gives what it measured: benchmarks run through the switch.
#[test]
fn the_switch_forwards_many_packets() {
    isolated(|| {
        const LENGTH: Duration = Duration::from_secs(2);
        let network = network();
        let bind = |name: &str, port: u16| {
            let host = network.host(name);
            host.enter(|| UdpSocket::bind((host.address(), port)).unwrap())
        };
        let (from, to) = (bind("a", PORT), SocketAddr::from((network.host("b").address(), PORT)));
        let _receiver = bind("b", PORT);
        let before = switch_cpu();
        let begun = Instant::now();
        while begun.elapsed() < LENGTH {
            for _ in 0..100 {
                // A full queue is an error here, and no reason to wait.
                let _ = from.send_to(&[0; 100], to);
            }
        }
        let seconds = begun.elapsed().as_secs_f64();
        let packets = network.link("b").inbound().traffic().packets as f64;
        let busy = switch_cpu() - before;
        println!(
            "{:.0} packets a second; {:.0} for each second of the switch's core",
            packets / seconds,
            packets / busy
        );
        let (mut client, server) = connection(&network, "a", "b");
        const BYTES: usize = 100_000_000;
        let begun = Instant::now();
        let receiving = std::thread::spawn(move || {
            let (mut server, mut buffer, mut left) = (server, vec![0; 1 << 18], BYTES);
            while left > 0 {
                left -= server.read(&mut buffer).unwrap();
            }
        });
        client.write_all(&vec![1; BYTES]).unwrap();
        receiving.join().unwrap();
        println!("TCP: {:.0} MB a second", BYTES as f64 / 1e6 / begun.elapsed().as_secs_f64());
        // Others may use the cores: only the processor time is judged.
        assert!(packets / busy > 100_000.0);
    });
}

/// Processor time of the switch's threads in seconds.
fn switch_cpu() -> f64 {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let ticks = tasks.filter_map(|task| {
        let stat = std::fs::read_to_string(task.path().join("stat")).ok()?;
        let (head, rest) = stat.rsplit_once(") ")?;
        let fields = rest.split(' ').skip(11).take(2).filter_map(|field| field.parse::<f64>().ok());
        head.ends_with("testnet-switch").then(|| fields.sum::<f64>())
    });
    ticks.sum::<f64>() / 100.0
}
