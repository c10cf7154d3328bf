//! What an error of a member means: whose fault it is decides who tries again. verdicts.csv says it of each code, and why;
//! the README has the same table, and the operator reads the same file.

use cryptoki_sys::CK_RV;
use std::sync::OnceLock;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The request is at fault: every member would say the same. The caller gets it.
    Request,
    /// The session, or its login, is gone: the same member again, once, with a new one.
    Session,
    /// The object's handle is not valid any more: the same member again, once, after a new search; then the next one.
    Handle,
    /// The member is well, and has no room for this, a rule against it, or a key or mechanism that does not fit: the next one,
    /// and this one keeps being asked.
    Unable,
    /// The PIN was refused: the next one, and no login here until the PIN file changes. A token locks itself after a few.
    Pin,
    /// The device failed, or its library: the next one, and this one is left alone for a while.
    Device,
}

use Verdict::*;

/// A code that has a name.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    pub code: CK_RV,
    pub name: &'static str,
    pub verdict: Verdict,
}

/// The rows of verdicts.csv.
pub fn table() -> &'static [Row] {
    static TABLE: OnceLock<Vec<Row>> = OnceLock::new();
    TABLE.get_or_init(|| {
        let rows = include_str!("../verdicts.csv").lines().skip(1);
        rows.map(|line| row(line).unwrap_or_else(|| panic!("verdicts.csv: {line}"))).collect()
    })
}

fn row(line: &'static str) -> Option<Row> {
    let mut fields = line.split(',');
    let code = CK_RV::from_str_radix(fields.next()?.strip_prefix("0x")?, 16).ok()?;
    let (name, verdict, why) = (fields.next()?, fields.next()?, fields.next()?);
    let all = [Request, Session, Handle, Unable, Pin, Device];
    let verdict = all.into_iter().find(|v| format!("{v:?}") == verdict)?;
    (!why.is_empty() && fields.next().is_none()).then_some(Row { code, name, verdict })
}

fn find(code: CK_RV) -> Option<&'static Row> {
    table().iter().find(|row| row.code == code)
}

/// A code that has no row, a vendor's own among them, counts as a failed device: a wrong request that is made again costs a
/// signature, a failed device that is taken for a wrong request a handshake.
pub fn verdict(code: CK_RV) -> Verdict {
    find(code).map_or(Device, |row| row.verdict)
}

/// The code as messages write it.
pub fn name(code: CK_RV) -> String {
    match find(code) {
        Some(row) => format!("{} (0x{code:x})", row.name),
        None => format!("0x{code:x}"),
    }
}
