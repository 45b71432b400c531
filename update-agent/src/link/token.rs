//! The join token: `ekj1.<SHA-256 of the CA certificate's DER, hexadecimal, or nothing>.<secret>`.

use evenkeel_kit::Secret;

/// The token with which an operator enrols a machine.
#[derive(Clone, Debug)]
pub struct JoinToken {
    /// The whole text, as the server expects it.
    pub text: Secret,
    /// SHA-256 of the certification authority of the server, if the token contains it.
    pub ca: Option<[u8; 32]>,
}

/// A text is not a join token.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// The format is wrong.
    #[error("this is not a join token: it must look like ekj1.….…")]
    Format,
    /// The part in the middle is not a SHA-256.
    #[error("the join token's second part must be empty or 64 hexadecimal digits")]
    Digest,
}

impl JoinToken {
    pub fn parse(text: &str) -> Result<Self, TokenError> {
        let text = text.trim();
        let parts: Vec<_> = text.split('.').collect();
        let ["ekj1", digest, secret] = parts[..] else {
            return Err(TokenError::Format);
        };
        let base64url = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        if secret.is_empty() || !secret.bytes().all(base64url) {
            return Err(TokenError::Format);
        }
        let ca = match digest {
            "" => None,
            digest => Some(decode_digest(digest).ok_or(TokenError::Digest)?),
        };
        Ok(Self { text: Secret::new(text), ca })
    }
}

fn decode_digest(text: &str) -> Option<[u8; 32]> {
    if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let mut bytes = [0; 32];
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_may_name_the_authority_that_vouches_for_the_server() {
        let digest = "0F".repeat(32);
        let token = JoinToken::parse(&format!(" ekj1.{digest}.c2Vj-_cmV0\n")).unwrap();
        assert_eq!(token.ca, Some([15; 32]));
        assert_eq!(token.text.reveal(), format!("ekj1.{digest}.c2Vj-_cmV0"));
        assert_eq!(JoinToken::parse("ekj1..c2VjcmV0").unwrap().ca, None);
    }

    #[test]
    fn an_invalid_token_is_refused_locally() {
        for text in ["", "ekj1", "ekj1..", "ekj2..x", "ekj1.x", "ekj1..a b", "ekj1..a.b"] {
            assert_eq!(JoinToken::parse(text).unwrap_err(), TokenError::Format, "{text}");
        }
        for digest in ["00", &"g".repeat(64), &"é".repeat(32)] {
            let text = format!("ekj1.{digest}.x");
            assert_eq!(JoinToken::parse(&text).unwrap_err(), TokenError::Digest);
        }
    }
}
