//! All ways through a world, one after the other, instead of one way drawn at random.

/// One way: the choices that were made, and between how many.
#[derive(Clone, Debug, Default)]
pub(crate) struct Choices {
    made: Vec<(usize, usize)>,
    at: usize,
}

impl Choices {
    /// Chooses one of so many: as on the way that is followed, past its end the first.
    pub(crate) fn pick(&mut self, of: usize) -> usize {
        if self.at == self.made.len() {
            self.made.push((0, of));
        }
        let (choice, before) = self.made[self.at];
        assert_eq!(of, before, "the world is not the same one as before");
        self.at += 1;
        choice
    }

    /// Goes to the next way: the last choice that has an alternative takes it. Returns whether
    /// there is one.
    pub(crate) fn next_way(&mut self) -> bool {
        self.at = 0;
        while let Some((choice, of)) = self.made.pop() {
            if choice + 1 < of {
                self.made.push((choice + 1, of));
                return true;
            }
        }
        false
    }
}

#[test]
fn every_way_is_gone_once() {
    let mut choices = Choices::default();
    let mut ways = Vec::new();
    loop {
        let first = choices.pick(2);
        let second = choices.pick(2 + first);
        ways.push((first, second));
        if !choices.next_way() {
            break;
        }
    }
    assert_eq!(ways, [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)]);
}
