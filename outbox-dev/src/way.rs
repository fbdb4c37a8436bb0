//! Which ways to a server there are, and what the environment says about them.

use std::ffi::OsString;
use std::{env, fmt, path::PathBuf, str::FromStr};

use crate::error::DevError;

const DEFAULT_IMAGE: &str = "postgres:17";

/// A way to a Postgres server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// A running server, by `DATABASE_URL`.
    Url,
    /// A container.
    Docker,
    /// A throw-away cluster made with the machine's own binaries.
    Local,
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Url => "url",
            Self::Docker => "docker",
            Self::Local => "local",
        })
    }
}

impl FromStr for Way {
    type Err = DevError;

    fn from_str(text: &str) -> Result<Self, DevError> {
        match text {
            "url" => Ok(Self::Url),
            "docker" => Ok(Self::Docker),
            "local" => Ok(Self::Local),
            other => Err(DevError::UnknownWay(other.to_owned())),
        }
    }
}

/// How a container is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Network {
    /// Its port is published on loopback.
    Bridge,
    /// It has the host's network, for engines whose published ports cannot be reached.
    Host,
}

impl FromStr for Network {
    type Err = DevError;

    fn from_str(text: &str) -> Result<Self, DevError> {
        match text {
            "bridge" => Ok(Self::Bridge),
            "host" => Ok(Self::Host),
            other => Err(DevError::UnknownNetwork(other.to_owned())),
        }
    }
}

/// The environment's say, read once per start.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) forced: Option<Way>,
    pub(crate) url: Option<String>,
    pub(crate) image: String,
    pub(crate) network: Network,
    pub(crate) bin: Option<PathBuf>,
    pub(crate) keep: bool,
}

impl Settings {
    pub(crate) fn from_env() -> Result<Self, DevError> {
        Self::from_lookup(|name| env::var_os(name))
    }

    fn from_lookup(lookup: impl Fn(&str) -> Option<OsString>) -> Result<Self, DevError> {
        let get = |name| text(name, lookup(name));
        let path = |name| lookup(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        Ok(Self {
            forced: get("OUTBOX_DEV_POSTGRES")?.map(|text| text.parse()).transpose()?,
            url: get("DATABASE_URL")?,
            image: get("OUTBOX_POSTGRES_IMAGE")?.unwrap_or_else(|| DEFAULT_IMAGE.to_owned()),
            network: get("OUTBOX_DEV_DOCKER_NETWORK")?.map_or(Ok(Network::Bridge), |text| text.parse())?,
            bin: path("OUTBOX_POSTGRES_BIN"),
            keep: get("OUTBOX_DEV_KEEP")?.is_some(),
        })
    }

    /// Ways to any server, best first.
    pub(crate) fn ways(&self) -> Vec<Way> {
        match self.forced {
            Some(way) => vec![way],
            None => vec![Way::Url, Way::Docker, Way::Local],
        }
    }

    /// Ways to a server that may be stopped: never the one given by URL, even where that is forced.
    pub(crate) fn ways_to_own(&self) -> Vec<Way> {
        match self.forced {
            Some(way) if way != Way::Url => vec![way],
            _ => vec![Way::Docker, Way::Local],
        }
    }
}

/// What the environment says under a name.
pub(crate) fn variable(name: &str) -> Result<Option<String>, DevError> {
    text(name, env::var_os(name))
}

/// An empty value counts as unset. What is no text does not: the default would be another server.
fn text(name: &str, value: Option<OsString>) -> Result<Option<String>, DevError> {
    let value = value.map(OsString::into_string).transpose();
    let value = value.map_err(|_| DevError::NotText(name.to_owned()))?;
    Ok(value.filter(|value| !value.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(set: &[(&str, &str)]) -> Result<Settings, DevError> {
        Settings::from_lookup(|name| {
            set.iter()
                .find(|(key, _)| *key == name)
                .map(|(_, value)| OsString::from(value))
        })
    }

    #[test]
    fn without_settings_every_way_is_tried_in_order() {
        let settings = settings(&[]).unwrap();

        assert_eq!(settings.ways(), [Way::Url, Way::Docker, Way::Local]);
        assert_eq!(settings.ways_to_own(), [Way::Docker, Way::Local]);
        assert_eq!(settings.image, "postgres:17");
        assert_eq!(settings.network, Network::Bridge);
    }

    #[test]
    fn a_forced_way_is_the_only_one() {
        let settings =
            settings(&[("OUTBOX_DEV_POSTGRES", "local"), ("DATABASE_URL", "postgres://x")]).unwrap();

        assert_eq!(settings.ways(), [Way::Local]);
        assert_eq!(settings.ways_to_own(), [Way::Local]);
    }

    #[test]
    fn a_server_given_by_url_is_never_an_own_one() {
        let settings = settings(&[("OUTBOX_DEV_POSTGRES", "url"), ("DATABASE_URL", "postgres://x")]).unwrap();

        assert_eq!(settings.ways(), [Way::Url]);
        assert_eq!(settings.ways_to_own(), [Way::Docker, Way::Local]);
    }

    #[test]
    fn an_unknown_way_is_refused_by_name() {
        let error = settings(&[("OUTBOX_DEV_POSTGRES", "podman")]).unwrap_err();

        let message = "OUTBOX_DEV_POSTGRES is \"podman\"; it must be one of: url, docker, local";
        assert_eq!(error.to_string(), message);
    }

    #[test]
    fn an_unknown_network_is_refused_by_name() {
        let error = settings(&[("OUTBOX_DEV_DOCKER_NETWORK", "none")]).unwrap_err();

        let message = "OUTBOX_DEV_DOCKER_NETWORK is \"none\"; it must be one of: bridge, host";
        assert_eq!(error.to_string(), message);
    }

    #[test]
    fn an_empty_value_counts_as_unset() {
        let settings = settings(&[("DATABASE_URL", ""), ("OUTBOX_DEV_POSTGRES", "")]).unwrap();

        assert_eq!(settings.url, None);
        assert_eq!(settings.forced, None);
    }
    #[cfg(unix)]
    #[test]
    fn what_is_no_text_is_refused_by_name_and_not_shown() {
        use std::os::unix::ffi::OsStringExt;

        for name in [
            "OUTBOX_DEV_POSTGRES",
            "DATABASE_URL",
            "OUTBOX_POSTGRES_IMAGE",
            "OUTBOX_DEV_DOCKER_NETWORK",
        ] {
            let broken = |asked: &str| (asked == name).then(|| OsString::from_vec(b"secret\xff".to_vec()));
            let message = Settings::from_lookup(broken).unwrap_err().to_string();

            assert_eq!(
                message,
                format!("{name} is not UTF-8; it takes text in UTF-8, or is left unset")
            );
        }
    }
}
