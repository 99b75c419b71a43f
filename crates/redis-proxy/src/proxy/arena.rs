//! Where do the sessions and links of a worker live? In numbered places that can be reused without a late
//! reply or event reaching the new occupant.

/// A place in an [`Arena`], and the generation of its occupant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    index: u32,
    generation: u32,
}

/// Generations wrap here, so that a key and its kind fit into an event's token.
const GENERATIONS: u32 = 1 << 30;

impl Key {
    /// As a number below 2^62, for the token of an event.
    pub(super) fn number(self) -> usize {
        (self.generation as usize) << 32 | self.index as usize
    }

    /// Back from [`number`](Self::number).
    pub(super) fn from_number(number: usize) -> Key {
        Key { index: number as u32, generation: (number >> 32) as u32 % GENERATIONS }
    }
}

/// Values by key. A value can be taken out temporarily; its key stays valid meanwhile.
#[derive(Debug)]
pub(super) struct Arena<T> {
    places: Vec<Place<T>>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Place<T> {
    generation: u32,
    value: Option<Box<T>>,
}

impl<T> Arena<T> {
    pub(super) fn new() -> Arena<T> {
        Arena { places: Vec::new(), free: Vec::new() }
    }

    /// The number of values.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// Inserts the value that `make` returns for its key.
    pub(super) fn insert_with(&mut self, make: impl FnOnce(Key) -> T) -> Key {
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place { generation: 0, value: None });
            self.places.len() as u32 - 1
        });
        let place = &mut self.places[index as usize];
        let key = Key { index, generation: place.generation };
        place.value = Some(Box::new(make(key)));
        key
    }

    pub(super) fn get(&self, key: Key) -> Option<&T> {
        let place = self.places.get(key.index as usize)?;
        if place.generation != key.generation {
            return None;
        }
        place.value.as_deref()
    }

    pub(super) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        let place = self.places.get_mut(key.index as usize)?;
        if place.generation != key.generation {
            return None;
        }
        place.value.as_deref_mut()
    }

    /// Takes the value out temporarily; [`put_back`](Self::put_back) or [`release`](Self::release) must
    /// follow.
    pub(super) fn take(&mut self, key: Key) -> Option<Box<T>> {
        let place = self.places.get_mut(key.index as usize)?;
        if place.generation != key.generation {
            return None;
        }
        place.value.take()
    }

    /// Returns a value that was taken out.
    pub(super) fn put_back(&mut self, key: Key, value: Box<T>) {
        if let Some(place) = self.places.get_mut(key.index as usize) {
            debug_assert!(place.generation == key.generation && place.value.is_none(), "put back twice");
            place.value = Some(value);
        }
    }

    /// Invalidates a key, whether its value is inside or taken out.
    pub(super) fn release(&mut self, key: Key) -> Option<Box<T>> {
        let place = self.places.get_mut(key.index as usize)?;
        if place.generation != key.generation {
            return None;
        }
        place.generation = (place.generation + 1) % GENERATIONS;
        self.free.push(key.index);
        place.value.take()
    }

    /// Every value that is not taken out.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.places.iter_mut().filter_map(|place| place.value.as_deref_mut())
    }

    /// Every value that is not taken out.
    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.places.iter().filter_map(|place| place.value.as_deref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_key_does_not_reach_the_next_tenant() {
        let mut arena = Arena::new();
        let first = arena.insert_with(|_| "first");
        assert_eq!(Key::from_number(first.number()), first);
        let taken = arena.take(first).unwrap();
        assert_eq!(arena.get(first), None, "taken");
        arena.put_back(first, taken);
        arena.release(first);
        let second = arena.insert_with(|_| "second");
        assert_eq!((arena.get(first), arena.get(second)), (None, Some(&"second")));
        assert_eq!(Key::from_number(second.number()), second);
        assert_eq!(arena.len(), 1);
    }
}
