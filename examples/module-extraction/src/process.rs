//! What the three programs have in common beside the modules: where things are, and when to end.

use std::error::Error;

use outbox::{Names, migrate, variable};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tokio::signal::unix::{SignalKind, signal};

/// Anything that ends a program.
pub type Failed = Box<dyn Error + Send + Sync>;

/// The value of an environment variable that has to be set.
///
/// # Errors
/// When it is not, or is no text.
pub fn setting(name: &str) -> Result<String, Failed> {
    variable::read(name)?.ok_or_else(|| format!("{name} is not set").into())
}

/// The database of this program, with the outbox's tables and these.
///
/// # Errors
/// When it cannot be reached or set up.
///
/// # Cancel safety
/// Safe: call it again.
pub async fn database(tables: &[&'static str]) -> Result<PgPool, Failed> {
    tracing_subscriber::fmt()
        .with_env_filter("info")
        .with_writer(std::io::stderr)
        .init();
    let pool = PgPoolOptions::new()
        .max_connections(20)
        .connect(&setting("DATABASE_URL")?)
        .await?;
    migrate(&mut *pool.acquire().await?, &Names::default()).await?;
    for text in tables {
        sqlx::raw_sql(*text).execute(&pool).await?;
    }
    Ok(pool)
}

/// Returns when the process is asked to end.
///
/// # Cancel safety
/// Safe.
pub async fn asked_to_end() {
    let Ok(mut terminate) = signal(SignalKind::terminate()) else {
        return;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = tokio::signal::ctrl_c() => {}
    }
}
