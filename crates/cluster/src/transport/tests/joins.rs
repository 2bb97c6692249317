//! Tokens and what they are traded for.

use super::*;
use crate::{JoinError, JoinRequest, Token, Unreachable, join};

fn named(name: &str) -> JoinRequest {
    JoinRequest { name: name.into(), node_id: None }
}

async fn try_join(
    identity: &Identity,
    token: &Token,
    request: JoinRequest,
) -> Result<Membership, JoinError> {
    join(identity, token, &request, LIMIT).await
}

#[tokio::test]
async fn a_token_makes_a_stranger_a_member_once() {
    let key = ClusterKey::generate();
    let mut a = start(options(&key, 1)).await;
    let token = a.handle.open_join(&key, Duration::from_secs(60)).unwrap();
    let token: Token = token.to_string().parse().unwrap();
    let identity = Identity::generate();
    let membership = try_join(&identity, &token, named("door")).await.unwrap();
    a.wait(|event| (event == Event::MembershipChanged).then_some(())).await;
    assert_eq!(membership.own().name(), "door");
    assert_eq!(membership.cluster_id(), key.public().id());
    assert_eq!(membership.members().count(), 1);

    let id = membership.own().node_id();
    let listen = "127.0.0.1:0".parse().unwrap();
    let mut b = start(Options::new(identity, Arc::new(Mutex::new(membership)), listen)).await;
    a.wait_up(id).await;
    b.wait_up(1).await;

    let again = try_join(&Identity::generate(), &token, named("window")).await;
    assert!(matches!(again, Err(JoinError::UsedToken)), "{again:?}");
    let counters = a.handle.counters();
    assert_eq!((counters.joins, counters.joins_refused), (1, 1));
    a.handle.try_send(id, "still here".into()).unwrap();
    assert_eq!(b.wait_frame(1).await, "still here");
}

#[tokio::test]
async fn who_is_not_let_in_is_told_why() {
    let key = ClusterKey::generate();
    let a = start(options(&key, 1)).await;
    let identity = Identity::generate();
    let good = a.handle.open_join(&key, Duration::from_secs(60)).unwrap();
    let addresses = a.handle.listen_addresses();

    let wrong = Token::new([1; 16], key.public().id(), a.identity.peer_id(), &addresses);
    let started = Instant::now();
    let error = try_join(&identity, &wrong, named("x")).await.unwrap_err();
    assert!(matches!(error, JoinError::WrongToken), "{error}");
    assert!(started.elapsed() >= Duration::from_millis(300));

    let late = a.handle.open_join(&key, Duration::ZERO).unwrap();
    let error = try_join(&identity, &late, named("x")).await.unwrap_err();
    assert!(matches!(error, JoinError::ExpiredToken), "{error}");

    let error = try_join(&identity, &good, named("node-1")).await.unwrap_err();
    assert!(matches!(error, JoinError::NameTaken { .. }), "{error}");
    let error = try_join(&identity, &good, named("a b")).await.unwrap_err();
    assert!(matches!(error, JoinError::BadName(_)), "{error}");
    let request = JoinRequest { name: "x".into(), node_id: Some(1) };
    let error = try_join(&identity, &good, request).await.unwrap_err();
    assert!(matches!(error, JoinError::NodeIdTaken { node_id: 1 }), "{error}");

    // Another peer answers than the token names.
    let other = Token::new(*good.secret(), key.public().id(), Identity::generate().peer_id(), &addresses);
    let error = try_join(&identity, &other, named("x")).await.unwrap_err();
    assert!(matches!(error, JoinError::Unreachable { reason: Unreachable::OtherNode { .. } }), "{error}");
    assert!(!error.to_string().contains(&a.identity.peer_id().to_string()), "{error}");
    let foreign =
        Token::new(*good.secret(), ClusterKey::generate().public().id(), a.identity.peer_id(), &addresses);
    let error = try_join(&identity, &foreign, named("x")).await.unwrap_err();
    assert!(matches!(error, JoinError::BadAnswer { .. }), "{error}");

    assert!(a.handle.open_join(&ClusterKey::generate(), Duration::from_secs(1)).is_err());
}

#[tokio::test]
async fn nobody_is_let_in_without_a_token() {
    let key = ClusterKey::generate();
    let a = start(options(&key, 1)).await;
    let token = Token::new([1; 16], key.public().id(), a.identity.peer_id(), &a.handle.listen_addresses());
    let error = try_join(&Identity::generate(), &token, named("x")).await.unwrap_err();
    assert!(matches!(error, JoinError::Closed), "{error}");
    assert!(!error.to_string().contains(&a.identity.peer_id().to_string()), "{error}");
    // No node listens there any more.
    let addresses = a.handle.listen_addresses();
    let issuer = a.identity.peer_id();
    a.stop().await;
    let token = Token::new([1; 16], key.public().id(), issuer, &addresses);
    let error = try_join(&Identity::generate(), &token, named("x")).await.unwrap_err();
    assert!(matches!(error, JoinError::Unreachable { reason: Unreachable::NoAnswer { .. } }), "{error}");
    assert!(!error.to_string().contains(&issuer.to_string()), "{error}");
}

#[tokio::test]
async fn guessing_is_bounded() {
    let key = ClusterKey::generate();
    let a = start(options(&key, 1)).await;
    let good = a.handle.open_join(&key, Duration::from_secs(60)).unwrap();
    let wrong = Token::new([1; 16], key.public().id(), a.identity.peer_id(), &a.handle.listen_addresses());
    let started = Instant::now();
    let guesses =
        (0..14).map(|_| async { try_join(&Identity::generate(), &wrong, named("x")).await.unwrap_err() });
    let errors = futures_util::future::join_all(guesses).await;
    let too_many = errors.iter().filter(|error| matches!(error, JoinError::TooManyAttempts)).count();
    // Each 3 seconds one more may be tried.
    let more = started.elapsed().as_secs() / 3;
    assert!((3_u64.saturating_sub(more)..=4).contains(&(too_many as u64)), "{errors:?}");
    try_join(&Identity::generate(), &good, named("x")).await.unwrap();
}
