-- A connection whose other end is gone ends within half a minute, and its locks with it.
SET tcp_keepalives_idle = 10;
SET tcp_keepalives_interval = 5;
SET tcp_keepalives_count = 3;
SET tcp_user_timeout = 15000;
