//! The Docker way: one container, through testcontainers.

use std::{
    collections::HashMap,
    env, io,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use testcontainers::{
    ContainerAsync, GenericImage, ImageExt,
    bollard::{
        Docker,
        models::{HostConfig, PortBinding},
        query_parameters::KillContainerOptionsBuilder,
    },
    core::{IntoContainerPort, WaitFor},
    runners::AsyncRunner,
};
use uuid::Uuid;

use crate::{
    error::DevError,
    postgres::{ServerOptions, Stop, free_port},
    supervisor::Supervisor,
    way::{Network, Settings},
};

/// For a supervisor: removes the container that it is given when its owner is gone.
pub(crate) const REMOVE_AT_END: &str = include_str!("../scripts/container.sh");
/// Generous: the image may have to be pulled first.
const START_TIMEOUT: Duration = Duration::from_secs(300);
const STOP_TIMEOUT: Duration = Duration::from_secs(60);

/// A running container; dropping it removes it.
#[derive(Debug, Clone)]
pub(crate) struct Container {
    // Never read: its drop removes the container where the process lives on.
    _container: Arc<ContainerAsync<GenericImage>>,
    supervisor: Arc<Mutex<Supervisor>>,
    name: String,
    pub(crate) url: String,
}

impl Container {
    pub(crate) async fn start(settings: &Settings, options: ServerOptions) -> Result<Self, DevError> {
        let failed = |error: io::Error| DevError::control("start a container", error);
        let (name, tag) = split_image(&settings.image);
        let password = Uuid::new_v4().simple().to_string();
        let container_name = format!("outbox-dev-{}", Uuid::new_v4().simple());
        // Fixed, because a published port that Docker picks is another one after a restart.
        let port = free_port().map_err(failed)?;
        let mut arguments = vec!["postgres".to_owned()];
        for (setting, value) in options.settings() {
            arguments.extend(["-c".to_owned(), format!("{setting}={value}")]);
        }
        if settings.network == Network::Host {
            let own = [format!("port={port}"), "listen_addresses=127.0.0.1".to_owned()];
            arguments.extend(own.into_iter().flat_map(|setting| ["-c".to_owned(), setting]));
        }

        // The image starts twice: once to set up, with its log on stdout, then for good.
        let ready = WaitFor::message_on_stderr("database system is ready to accept connections");
        let request = GenericImage::new(name, tag)
            .with_exposed_port(5432.tcp())
            .with_wait_for(ready)
            .with_env_var("POSTGRES_PASSWORD", &password)
            // Never past this machine, and a debug build takes long over a SCRAM exchange.
            .with_env_var("POSTGRES_HOST_AUTH_METHOD", "password")
            .with_cmd(arguments)
            .with_container_name(&container_name)
            .with_label("outbox-dev.port", port.to_string())
            .with_startup_timeout(START_TIMEOUT);
        let request = match settings.network {
            Network::Bridge => request.with_host_config_modifier(move |config| publish(config, 5432, port)),
            Network::Host => request.with_network("host"),
        };
        let mut supervisor =
            Supervisor::spawn(REMOVE_AT_END, &[Path::new(&container_name)], None).map_err(failed)?;
        let started = tokio::time::timeout(START_TIMEOUT, request.start()).await;
        // Whether it came up or not, nothing more is being created now.
        supervisor.tell("up").map_err(failed)?;
        let container = started
            .map_err(|elapsed| DevError::control("start a container", elapsed))?
            .map_err(|error| DevError::control("start a container", error))?;
        // Not what testcontainers takes for the host of a local engine: on a machine with a `/.dockerenv` that is the address
        // of the engine's bridge, where nothing is published.
        let host = match is_remote() {
            true => container.get_host().await.map(|host| host.to_string()),
            false => Ok("127.0.0.1".to_owned()),
        };
        let host = host.map_err(|error| DevError::control("find the engine's host", error))?;
        Ok(Self {
            _container: Arc::new(container),
            supervisor: Arc::new(Mutex::new(supervisor)),
            name: container_name,
            url: format!("postgres://postgres:{password}@{host}:{port}/postgres"),
        })
    }

    /// Sends the signal to the server, which is the container's first process, and waits for its end.
    pub(crate) async fn stop(&self, how: Stop) -> Result<(), DevError> {
        let signal = match how {
            Stop::Fast => "SIGINT",
            Stop::Immediate => "SIGQUIT",
            Stop::Kill => "SIGKILL",
        };
        let stopped = async {
            let docker = Docker::connect_with_defaults()?;
            let options = KillContainerOptionsBuilder::default().signal(signal).build();
            docker.kill_container(&self.name, Some(options)).await?;
            while is_running(&docker, &self.name).await? {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Ok::<(), testcontainers::bollard::errors::Error>(())
        };
        let in_time = tokio::time::timeout(STOP_TIMEOUT, stopped).await;
        let outcome = in_time.map_err(|elapsed| DevError::control("stop the container", elapsed))?;
        outcome.map_err(|error| DevError::control("stop the container", error))
    }

    pub(crate) async fn resume(&self) -> Result<(), DevError> {
        let failed = |error| DevError::control("start the container again", error);
        let docker = Docker::connect_with_defaults().map_err(failed)?;
        docker.start_container(&self.name, None).await.map_err(failed)
    }

    /// Lets the server outlive its owner, and says where it is.
    pub(crate) fn keep(&self) -> Result<(), DevError> {
        let mut supervisor = self.supervisor.lock().unwrap_or_else(PoisonError::into_inner);
        supervisor
            .tell("keep")
            .map_err(|error| DevError::control("keep the container", error))?;
        eprintln!("outbox-dev: to be kept: {}, container {}", self.url, self.name);
        // Its drop would remove the container.
        std::mem::forget(Arc::clone(&self._container));
        Ok(())
    }
}

async fn is_running(docker: &Docker, name: &str) -> Result<bool, testcontainers::bollard::errors::Error> {
    let state = docker.inspect_container(name, None).await?.state;
    Ok(state.and_then(|state| state.running).unwrap_or(false))
}

fn is_remote() -> bool {
    env::var("DOCKER_HOST").is_ok_and(|host| !host.starts_with("unix:"))
}

/// Loopback only, unless the engine is on another machine.
pub(crate) fn publish(config: &mut HostConfig, inside: u16, port: u16) {
    let remote =
        env::var_os("DOCKER_HOST").is_some_and(|host| !host.as_encoded_bytes().starts_with(b"unix:"));
    let host_ip = (!remote).then(|| "127.0.0.1".to_owned());
    let binding = PortBinding {
        host_ip,
        host_port: Some(port.to_string()),
    };
    config.publish_all_ports = Some(false);
    config.port_bindings = Some(HashMap::from([(format!("{inside}/tcp"), Some(vec![binding]))]));
}

/// `name:tag` at the last colon, which is no tag where a slash follows (a registry's port).
pub(crate) fn split_image(image: &str) -> (&str, &str) {
    match image.rsplit_once(':') {
        Some((name, tag)) if !tag.contains('/') => (name, tag),
        _ => (image, "latest"),
    }
}

#[cfg(test)]
mod tests {
    use super::split_image;

    #[test]
    fn an_image_is_split_at_its_tag() {
        assert_eq!(split_image("postgres:17"), ("postgres", "17"));
        assert_eq!(split_image("postgres"), ("postgres", "latest"));
        assert_eq!(
            split_image("registry.example:5000/postgres"),
            ("registry.example:5000/postgres", "latest")
        );
        assert_eq!(
            split_image("registry.example:5000/postgres:17"),
            ("registry.example:5000/postgres", "17")
        );
    }
}
