//! Keys with which webhooks are signed.

use rand::TryRngCore;
use rand::rngs::OsRng;

use crate::join::NoRandomness;

/// Random bytes for a new key.
///
/// # Errors
/// The operating system returned no random numbers.
pub fn generate_webhook_key<const N: usize>() -> Result<[u8; N], NoRandomness> {
    let mut key = [0; N];
    OsRng.try_fill_bytes(&mut key).map_err(|error| NoRandomness(error.to_string()))?;
    Ok(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_differ() {
        let (one, other) = (generate_webhook_key::<32>(), generate_webhook_key::<32>());
        assert_ne!(one.expect("randomness"), other.expect("randomness"));
    }
}
