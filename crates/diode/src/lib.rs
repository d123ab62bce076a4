//! Lossy ring buffers.
