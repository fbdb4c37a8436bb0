//! A TCP proxy that misbehaves on request.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::{AbortHandle, JoinSet},
};

/// What the proxy does with every connection, open and new.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mode {
    /// Passes everything on.
    Forward,
    /// Passes everything on, each piece this much later.
    Delay(Duration),
    /// Passes requests on and throws answers away: the work is done, nobody learns of it.
    DropReplies,
    /// Keeps connections open and passes nothing, as a cable pulled somewhere far away. What was sent
    /// meanwhile arrives when the mode changes.
    BlackHole,
    /// As `BlackHole`, but only for connections that have sent `LISTEN`, or try to.
    BlackHoleListeners,
    /// Closes every connection and refuses new ones.
    Down,
    /// Passes requests on until these bytes were in one. The server's answer to it is thrown away, the
    /// connection is cut, and the mode is `Forward` again: the answer to one `COMMIT` is lost.
    CutReplyTo(Vec<u8>),
}

/// Listens on a loopback port until dropped.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    mode: Arc<watch::Sender<Mode>>,
    listener: AbortHandle,
}

impl Proxy {
    /// Starts in [`Mode::Forward`] in front of `target`, such as `127.0.0.1:5432`.
    ///
    /// # Errors
    /// No port could be had.
    pub async fn start(target: impl Into<String>) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let mode = Arc::new(watch::Sender::new(Mode::Forward));
        let listening = tokio::spawn(listen(listener, target.into(), Arc::clone(&mode)));
        Ok(Self {
            address,
            mode,
            listener: listening.abort_handle(),
        })
    }

    /// Where clients connect.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Changes the mode of every connection, at once.
    pub fn set(&self, mode: Mode) {
        self.mode.send_replace(mode);
    }

    /// The mode now: `Forward` after a `CutReplyTo` has struck.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.mode.borrow().clone()
    }

    /// Returns once the mode is `mode`.
    pub async fn reached(&self, mode: &Mode) {
        // The sender lives as long as self, so the wait cannot fail.
        let _ = self.mode.subscribe().wait_for(|now| now == mode).await;
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.listener.abort();
    }
}

async fn listen(listener: TcpListener, target: String, mode: Arc<watch::Sender<Mode>>) {
    // Dropped with the listener, and with it every connection.
    let mut connections = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        if *mode.borrow() != Mode::Down {
            connections.spawn(connection(client, target.clone(), Arc::clone(&mode)));
        }
        while connections.try_join_next().is_some() {}
    }
}

async fn connection(client: TcpStream, target: String, mode: Arc<watch::Sender<Mode>>) {
    let Ok(server) = TcpStream::connect(target).await else {
        return;
    };
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let (cut, cut_seen) = watch::channel(false);
    let listens = AtomicBool::new(false);
    let mut down = mode.subscribe();
    let requests = pump(
        from_client,
        to_server,
        |bytes| forward_request(bytes, &mode, &cut),
        (&mode, &listens, true),
    );
    let answers = pump(
        from_server,
        to_client,
        |_| forward_answer(&mode, &cut_seen),
        (&mode, &listens, false),
    );
    // Either end closing closes both.
    tokio::select! {
        _ = requests => {}
        _ = answers => {}
        _ = down.wait_for(|now| *now == Mode::Down) => {}
    }
}

#[derive(PartialEq)]
enum Fate {
    Pass,
    Drop,
    Close,
}

async fn pump(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    fate: impl Fn(&[u8]) -> Fate,
    (mode, listens, requests): (&watch::Sender<Mode>, &AtomicBool, bool),
) -> io::Result<()> {
    let mut buffer = vec![0; 64 * 1024];
    let mut modes = mode.subscribe();
    loop {
        let count = from.read(&mut buffer).await?;
        if requests && contains(&buffer[..count], b"LISTEN") {
            listens.store(true, Ordering::Relaxed);
        }
        // What arrived may have to wait; what follows waits behind it.
        let passes = |now: &Mode| match now {
            Mode::BlackHole => false,
            Mode::BlackHoleListeners => !listens.load(Ordering::Relaxed),
            _ => true,
        };
        let _ = modes.wait_for(passes).await;
        let delay = if let Mode::Delay(delay) = *modes.borrow() {
            delay
        } else {
            Duration::ZERO
        };
        tokio::time::sleep(delay).await;
        match fate(&buffer[..count]) {
            Fate::Close => return Ok(()),
            _ if count == 0 => return Ok(()),
            Fate::Drop => {}
            Fate::Pass => to.write_all(&buffer[..count]).await?,
        }
    }
}

fn contains(bytes: &[u8], marker: &[u8]) -> bool {
    bytes.windows(marker.len()).any(|part| part == marker)
}

/// The marker is looked for in each piece as it arrives: short ones come in one.
fn forward_request(bytes: &[u8], mode: &watch::Sender<Mode>, cut: &watch::Sender<bool>) -> Fate {
    let strikes = mode.send_if_modified(|now| {
        let found = matches!(now, Mode::CutReplyTo(marker) if contains(bytes, marker));
        if found {
            *now = Mode::Forward;
        }
        found
    });
    if strikes {
        cut.send_replace(true);
    }
    Fate::Pass
}

fn forward_answer(mode: &watch::Sender<Mode>, cut: &watch::Receiver<bool>) -> Fate {
    if *cut.borrow() {
        return Fate::Close;
    }
    if *mode.borrow() == Mode::DropReplies {
        Fate::Drop
    } else {
        Fate::Pass
    }
}
