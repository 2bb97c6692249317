use ring::signature::{Ed25519KeyPair, KeyPair};
use serde_json::json;

use super::*;

const NOW: u64 = 1_700_000_000;
const SECRET: &[u8] = b"0123456789abcdef0123456789abcdef";

fn jwt(section: &JwtSection) -> Jwt {
    Jwt::load(section).unwrap()
}

/// Checks HS256 tokens.
fn hs256(change: impl FnOnce(&mut JwtSection)) -> Jwt {
    let folder = tempfile::tempdir().unwrap();
    let secret = folder.path().join("secret");
    std::fs::write(&secret, [SECRET, b"\n"].concat()).unwrap();
    let mut section = JwtSection { secret: Some(secret), ..JwtSection::default() };
    change(&mut section);
    jwt(&section)
}

fn token(header: &serde_json::Value, claims: &serde_json::Value) -> String {
    let part = |value: &serde_json::Value| BASE64URL.encode(value.to_string());
    let signed = format!("{}.{}", part(header), part(claims));
    format!("{signed}.{}", hs256_signature(SECRET, &signed))
}

fn hs256_signature(secret: &[u8], signed: &str) -> String {
    BASE64URL.encode(hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), signed.as_bytes()))
}

fn checked(jwt: &Jwt, claims: &serde_json::Value) -> Result<Claims, JwtError> {
    jwt.check(token(&json!({"alg": "HS256", "typ": "JWT"}), claims).as_bytes(), NOW)
}

#[test]
fn claims_are_checked() {
    let jwt = hs256(|_| {});
    let good = checked(&jwt, &json!({"sub": "ada", "exp": NOW + 60})).unwrap();
    assert_eq!(good, Claims { subject: "ada".into(), expires_unix_s: NOW + 60 + LEEWAY_S });
    let malformed = |words| JwtError::Malformed(words);
    let needs = malformed("its claims need `sub` (a text) and `exp` (a number)");
    for (claims, error) in [
        (json!({"sub": "ada", "exp": NOW - 3600}), JwtError::Expired),
        (json!({"sub": "ada", "exp": NOW - LEEWAY_S}), JwtError::Expired),
        (json!({"sub": "ada", "exp": -1}), JwtError::Expired),
        (json!({"sub": "ada", "exp": NOW + 60, "nbf": NOW + 3600}), JwtError::NotYet),
        (json!({"sub": "ada"}), needs.clone()),
        (json!({"sub": "ada", "exp": "never"}), needs.clone()),
        (json!({"sub": "ada", "exp": NOW + 60, "nbf": "soon"}), needs.clone()),
        (json!({"sub": 7, "exp": NOW + 60}), needs.clone()),
        (json!({"exp": NOW + 60}), needs),
        (json!({"sub": "", "exp": NOW + 60}), malformed("its `sub` is empty")),
    ] {
        assert_eq!(checked(&jwt, &claims), Err(error), "{claims}");
    }
    for claims in [
        json!({"sub": "ada", "exp": NOW - LEEWAY_S + 1}),
        json!({"sub": "ada", "exp": NOW as f64 + 0.5, "nbf": NOW + LEEWAY_S, "other": [1]}),
        json!({"sub": "ada", "exp": 1e300}),
    ] {
        assert!(checked(&jwt, &claims).is_ok(), "{claims}");
    }
}

#[test]
fn issuer_and_audience_are_checked_if_configured() {
    let jwt = hs256(|section| {
        section.issuer = Some("https://login".into());
        section.audience = Some("greenhouse".into());
    });
    let claims = |more: serde_json::Value| {
        let mut claims =
            json!({"sub": "ada", "exp": NOW + 60, "iss": "https://login", "aud": "greenhouse"});
        claims.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        checked(&jwt, &claims).map(|_| ())
    };
    assert_eq!(claims(json!({})), Ok(()));
    assert_eq!(claims(json!({"aud": ["other", "greenhouse"]})), Ok(()));
    assert_eq!(claims(json!({"aud": ["other"]})), Err(JwtError::Claim("aud")));
    assert_eq!(claims(json!({"aud": null})), Err(JwtError::Claim("aud")));
    assert_eq!(claims(json!({"iss": "https://other"})), Err(JwtError::Claim("iss")));
    assert_eq!(claims(json!({"iss": null})), Err(JwtError::Claim("iss")));
}

#[test]
fn the_key_determines_the_algorithm() {
    let jwt = hs256(|_| {});
    let claims = json!({"sub": "ada", "exp": NOW + 60});
    for alg in ["none", "HS512", "RS256", "EdDSA", ""] {
        let error = jwt.check(token(&json!({"alg": alg}), &claims).as_bytes(), NOW);
        assert_eq!(error, Err(JwtError::Algorithm(alg.into())));
    }
    for header in [json!({"alg": "HS256", "crit": ["x"]}), json!({}), json!({"alg": ["HS256"]})] {
        let error = jwt.check(token(&header, &claims).as_bytes(), NOW);
        assert!(matches!(error, Err(JwtError::Malformed(_))), "{header}");
    }
}

/// The attack on libraries that trust the algorithm of the token: everyone knows the public key.
#[test]
fn a_public_key_is_never_a_secret() {
    let folder = tempfile::tempdir().unwrap();
    let (public, secret) = (folder.path().join("keys.pem"), folder.path().join("secret"));
    let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
    std::fs::write(&public, key.public_key_pem()).unwrap();
    std::fs::write(&secret, SECRET).unwrap();
    let claims = BASE64URL.encode(json!({"sub": "root", "exp": NOW + 60}).to_string());
    let of_public_key = JwtSection { public_key: Some(public), ..JwtSection::default() };
    let of_both = JwtSection { secret: Some(secret), ..of_public_key.clone() };
    let pem = key.public_key_pem();
    let der = SubjectPublicKeyInfoDer::from_pem_slice(pem.as_bytes()).unwrap();
    for known in [pem.as_bytes(), pem.trim_end().as_bytes(), &der, key.public_key_raw()] {
        let signed = format!("{}.{claims}", BASE64URL.encode(r#"{"alg":"HS256"}"#));
        let token = format!("{signed}.{}", hs256_signature(known, &signed));
        let check = |section| jwt(section).check(token.as_bytes(), NOW);
        assert_eq!(check(&of_public_key), Err(JwtError::Algorithm("HS256".into())));
        assert_eq!(check(&of_both), Err(JwtError::Signature));
    }
    // A secret does not serve as a public key either.
    let signed = format!("{}.{claims}", BASE64URL.encode(r#"{"alg":"EdDSA"}"#));
    let token = format!("{signed}.{}", hs256_signature(SECRET, &signed));
    assert_eq!(jwt(&of_both).check(token.as_bytes(), NOW), Err(JwtError::Signature));
}

#[test]
fn a_token_without_a_signature_is_refused() {
    let claims = BASE64URL.encode(json!({"sub": "root", "exp": NOW + 60}).to_string());
    for algorithm in ["none", "None", "NONE", "HS256"] {
        let header = BASE64URL.encode(json!({"alg": algorithm}).to_string());
        let error = hs256(|_| {}).check(format!("{header}.{claims}.").as_bytes(), NOW).unwrap_err();
        let expected = match algorithm {
            "HS256" => JwtError::Signature,
            _ => JwtError::Algorithm(algorithm.into()),
        };
        assert_eq!(error, expected);
    }
}

#[test]
fn the_length_of_a_token_is_limited() {
    let jwt = hs256(|_| {});
    let of_length = |padding: usize| {
        let claims = json!({"sub": "ada", "exp": NOW + 60, "padding": "x".repeat(padding)});
        token(&json!({"alg": "HS256"}), &claims)
    };
    let (long, longer) = (of_length(12_000), of_length(12_500));
    assert!(long.len() <= MAX_TOKEN_BYTES && longer.len() > MAX_TOKEN_BYTES);
    assert!(jwt.check(long.as_bytes(), NOW).is_ok());
    assert_eq!(jwt.check(longer.as_bytes(), NOW), Err(JwtError::Malformed("it is too long")));
}

#[test]
fn changed_or_malformed_tokens_are_refused() {
    let jwt = hs256(|_| {});
    let good = token(&json!({"alg": "HS256"}), &json!({"sub": "ada", "exp": NOW + 60}));
    assert!(jwt.check(good.as_bytes(), NOW).is_ok());
    let (signed, signature) = good.rsplit_once('.').unwrap();
    let (header, _) = signed.split_once('.').unwrap();
    let forged = BASE64URL.encode(r#"{"sub":"root","exp":99999999999}"#);
    for token in [
        format!("{header}.{forged}.{signature}"),
        format!("{signed}."),
        format!("{signed}.{}", BASE64URL.encode([0; 32])),
    ] {
        assert_eq!(jwt.check(token.as_bytes(), NOW), Err(JwtError::Signature));
    }
    for text in
        ["", ".", "..", "a.b.c", "eyJ.eyJ", &format!("{good}.x"), &format!("{good}="), &"x".repeat(20_000)]
    {
        assert!(matches!(jwt.check(text.as_bytes(), NOW), Err(JwtError::Malformed(_))), "{text}");
    }
    assert!(jwt.check(b"\xff\xfe.\xff.\xff", NOW).is_err());
    assert!(Jwt::looks_like_one(good.as_bytes()));
    assert!(!Jwt::looks_like_one(b"hunter2") && !Jwt::looks_like_one(b"a.b.c"));
}

/// RFC 7515, appendix A.1.
#[test]
fn the_standards_example_with_a_secret() {
    let key = "AyM1SysPpbyDfgZld3umj1qzKObwVMkoqQ-EstJQLr_T-1qS0gZH75aKtMN3Yj0iPS4hcgUuTwjAzZr1Z9CAow";
    let key = hmac::Key::new(hmac::HMAC_SHA256, &BASE64URL.decode(key).unwrap());
    let signed = "eyJ0eXAiOiJKV1QiLA0KICJhbGciOiJIUzI1NiJ9.\
                  eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ";
    let signature = BASE64URL.decode("dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk").unwrap();
    assert!(Key::Hs256(key).verifies(signed.as_bytes(), &signature));
}

/// RFC 8037, appendix A.4.
#[test]
fn the_standards_example_with_a_public_key() {
    let key = BASE64URL.decode("11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo").unwrap();
    let signed = "eyJhbGciOiJFZERTQSJ9.RXhhbXBsZSBvZiBFZDI1NTE5IHNpZ25pbmc";
    let signature =
        "hgyY0il_MGCjP0JzlnLWG1PPOt7-09PGcvMg3AIbQR6dWbhijcNR4ki4iylGjg5BhVsPt9g7sVvpAr_MuM0KAg";
    let signature = BASE64URL.decode(signature).unwrap();
    let key = Key::EdDsa(key.into());
    assert!(key.verifies(signed.as_bytes(), &signature));
    assert!(!key.verifies(&signed.as_bytes()[1..], &signature));
}

#[test]
fn a_public_key_is_read_from_pem() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys.pem");
    let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
    let older = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
    std::fs::write(&path, older.public_key_pem() + &key.public_key_pem()).unwrap();
    let section = JwtSection { public_key: Some(path.clone()), ..JwtSection::default() };
    let signed = format!(
        "{}.{}",
        BASE64URL.encode(r#"{"alg":"EdDSA"}"#),
        BASE64URL.encode(json!({"sub": "ada", "exp": NOW + 60}).to_string())
    );
    let signer = Ed25519KeyPair::from_pkcs8(key.serialized_der()).unwrap();
    assert_eq!(signer.public_key().as_ref(), key.public_key_raw());
    let token = format!("{signed}.{}", BASE64URL.encode(signer.sign(signed.as_bytes())));
    assert_eq!(jwt(&section).check(token.as_bytes(), NOW).unwrap().subject, "ada");

    let elliptic = rcgen::KeyPair::generate().unwrap();
    for (contents, words) in
        [(elliptic.public_key_pem(), "neither RSA"), (key.serialize_pem(), "no `-----BEGIN PUBLIC KEY")]
    {
        std::fs::write(&path, contents).unwrap();
        let error = Jwt::load(&section).err().unwrap().to_string();
        assert!(error.contains(words) && error.contains("keys.pem"), "{error}");
    }
}

#[test]
fn an_unusable_key_is_an_error_that_names_its_file() {
    let folder = tempfile::tempdir().unwrap();
    let error = |section: &JwtSection| Jwt::load(section).err().unwrap().to_string();
    assert!(error(&JwtSection::default()).contains("has no key"));
    let secret = folder.path().join("secret");
    let section = JwtSection { secret: Some(secret.clone()), ..JwtSection::default() };
    assert!(error(&section).contains("access.jwt.secret"));
    std::fs::write(&secret, "short\n").unwrap();
    assert!(error(&section).contains("5 bytes; HS256 needs at least 32"));
}
