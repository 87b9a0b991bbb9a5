//! Room `journal`.
