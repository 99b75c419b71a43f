//! All 16,384 slots on one screen: 16 lines of 64 cells, 16 slots per cell.

use capstan_redis::api::{ClusterPage, SlotLine};
use capstan_redis::slots::SLOTS;

const CELLS_A_LINE: u16 = 64;
const SLOTS_A_CELL: u16 = 16;
/// With more nodes than letters the letters repeat; the table above shows which is which.
const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";

/// The letter of the node in this line of the table.
pub(super) fn letter(at: usize) -> char {
    char::from(LETTERS[at % LETTERS.len()])
}

/// A letter per cell, `*` for moving slots, `.` for slots without an owner; where owners share a cell, the last one is
/// shown.
pub(super) fn slot_map(page: &ClusterPage) -> String {
    let mut cells = vec!['.'; usize::from(SLOTS / SLOTS_A_CELL)];
    for line in &page.slot_map {
        let (first, last) = (usize::from(line.first / SLOTS_A_CELL), usize::from(line.last / SLOTS_A_CELL));
        for cell in cells.iter_mut().take(last + 1).skip(first) {
            *cell = mark(page, line);
        }
    }
    let lines = cells.chunks(usize::from(CELLS_A_LINE)).enumerate().map(|(line, cells)| {
        let first = line as u32 * u32::from(CELLS_A_LINE * SLOTS_A_CELL);
        format!("{first:>5}  {}", cells.iter().collect::<String>())
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn mark(page: &ClusterPage, line: &SlotLine) -> char {
    match (&line.node, &line.moving_to) {
        (None, _) => '.',
        (Some(_), Some(_)) => '*',
        (Some(owner), None) => page.nodes.iter().position(|node| node.node == *owner).map_or('?', letter),
    }
}
