//! What is wrong with a server's certificate, or with the scheme of its address, and what to do.

use std::error::Error;

use evenkeel_kit::chain;

/// How rustls reports a certificate that it does not accept.
const REFUSED: &str = "invalid peer certificate";

/// Whether a connection failed because the certificate of the server was not accepted.
pub fn is_refused(error: &(dyn Error + 'static)) -> bool {
    chain(error).to_string().contains(REFUSED)
}

/// What to do about a certificate, given the text of an error with its causes. `None` for other
/// errors. `ca_option` names the CA certificate.
pub fn hint(text: &str, ca_option: &str) -> Option<String> {
    let why = text.split_once(REFUSED)?.1;
    if why.contains("CaUsedAsEndEntity") {
        return Some(format!(
            "the server uses the certificate of a CA (CA:TRUE) as its own, which TLS does not accept: \
             sign a certificate for the server with that CA, or make a self-signed one that is no CA, \
             such as `openssl req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem \
             -subj /CN=HOST -addext subjectAltName=DNS:HOST -addext basicConstraints=critical,CA:FALSE`, \
             and name it with {ca_option}"
        ));
    }
    // A server that was installed again has another CA of the same name, whose signature differs.
    if why.contains("UnknownIssuer") || why.contains("BadSignature") {
        // Only evenkeeld has an authority of its own.
        let own = if ca_option == "--ca" {
            "; on the server, `evenkeeld ca` prints that of its own CA"
        } else {
            ""
        };
        return Some(format!(
            "the server's certificate was issued by an unknown CA: name the certificate of that CA with {ca_option}{own}"
        ));
    }
    if why.contains("not valid for name") && ca_option == "--ca" {
        return Some(
            "use an address with a name of the server's certificate, or add the name to rest.server_names of evenkeeld"
                .to_owned(),
        );
    }
    Some(
        "check the server's certificate: its names, its validity, and the clock of this machine"
            .to_owned(),
    )
}

/// What to do if a client and a server disagree about TLS, given the text of an error with its
/// causes. `None` for other errors.
pub fn scheme_hint(text: &str) -> Option<String> {
    if text.contains("InvalidContentType") {
        return Some("the server does not use TLS on this port: use another port, or http://, which encrypts nothing".to_owned());
    }
    let uses_tls = text.contains("invalid HTTP version");
    uses_tls
        .then(|| "the server may use TLS on this port: use https://, or another port".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_refusal_has_its_own_hint() {
        let hint = |why: &str| hint(&format!("error sending request: {REFUSED}: {why}"), "--ca");
        let ca = hint("Other(OtherError(CaUsedAsEndEntity))").expect("a hint");
        assert!(ca.contains("CA:FALSE") && ca.ends_with("name it with --ca"), "{ca}");
        for why in ["UnknownIssuer", "BadSignature"] {
            assert!(hint(why).is_some_and(|text| text.contains("unknown CA")), "{why}");
        }
        let unknown = hint("UnknownIssuer").expect("a hint");
        assert!(unknown.contains("`evenkeeld ca` prints"), "{unknown}");
        let registry = super::hint(&format!("{REFUSED}: UnknownIssuer"), "--registry-ca");
        assert!(registry.is_some_and(|text| text.ends_with("with --registry-ca")));
        let name = hint("certificate not valid for name \"a.example\"").expect("a hint");
        assert!(name.contains("rest.server_names"), "{name}");
        assert!(hint("Expired").is_some_and(|text| text.contains("validity")));
        assert_eq!(super::hint("connection refused", "--ca"), None);
    }

    #[test]
    fn a_wrong_scheme_has_a_hint() {
        let plain = scheme_hint("received corrupt message of type InvalidContentType");
        assert!(plain.is_some_and(|text| text.contains("or http://, which encrypts nothing")));
        let secured = scheme_hint("invalid HTTP version parsed");
        assert!(secured.is_some_and(|text| text.contains("use https://")));
        assert_eq!(scheme_hint("connection refused"), None);
    }
}
