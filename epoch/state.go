package epoch

// State of a mirrored partition (DESIGN §8, facts.md §1).
type State string

// The states. A topic that was never mirrored is StateUnknown.
const (
	StateUnknown      State = "UNKNOWN"
	StateLogAlignment State = "LOG_ALIGNMENT"
	StateEpochFencing State = "EPOCH_FENCING"
	StateULERecovery  State = "ULE_RECOVERY"
	StateMirroring    State = "MIRRORING"
	StatePausing      State = "PAUSING"
	StatePaused       State = "PAUSED"
	StateStopping     State = "STOPPING"
	StateStopped      State = "STOPPED"
	StateFailed       State = "FAILED"
)

// Valid tells whether s is a state this version knows.
func (s State) Valid() bool {
	switch s {
	case StateUnknown, StateLogAlignment, StateEpochFencing, StateULERecovery, StateMirroring,
		StatePausing, StatePaused, StateStopping, StateStopped, StateFailed:
		return true
	}
	return false
}

// Writable tells whether clients may write: only when STOPPED.
func (s State) Writable() bool { return s == StateStopped }

// Active tells whether the partition counts as mirroring its source in the
// loop check; FAILED does (hazard F13).
func (s State) Active() bool {
	return s.Valid() && s != StateUnknown && s != StateStopped
}

// Allowed tells whether a partition may go from one state to the other. The
// way from FAILED back needs the previous state: AllowedBack. Same to same is
// allowed: it re-asserts the state and repeats its action.
func Allowed(from, to State) bool {
	if !from.Valid() || !to.Valid() {
		return false
	}
	if from == to {
		return true
	}
	switch to {
	case StateLogAlignment:
		return from == StateUnknown || from == StateStopped
	case StateEpochFencing:
		return from == StateMirroring || from == StateLogAlignment
	case StateULERecovery:
		return from == StateMirroring || from == StateEpochFencing
	case StateMirroring:
		return from == StateLogAlignment || from == StateEpochFencing || from == StateULERecovery || from == StatePaused
	case StatePausing:
		return from == StateMirroring
	case StatePaused:
		return from == StatePausing
	case StateStopping:
		return from == StateLogAlignment || from == StateEpochFencing || from == StateMirroring || from == StateULERecovery ||
			from == StatePausing || from == StatePaused || from == StateFailed
	case StateStopped:
		return from == StateStopping
	case StateFailed:
		return from != StateStopped
	}
	return false // nothing leads to UNKNOWN
}

// AllowedBack is Allowed for a partition that remembers the state before
// FAILED: a retry or `recover` leads back there, never to an earlier one
// (hazard F13).
func AllowedBack(from, previous, to State) bool {
	if from == StateFailed && to == previous && previous.Valid() && previous != StateStopped {
		return true
	}
	return Allowed(from, to)
}

// CanStart tells whether a mirror may start: every partition is STOPPED or
// UNKNOWN.
func CanStart(states ...State) bool {
	return all(states, func(s State) bool { return s == StateStopped || s == StateUnknown })
}

// CanPause tells whether a mirror may pause: every partition is MIRRORING.
func CanPause(states ...State) bool {
	return all(states, func(s State) bool { return s == StateMirroring })
}

// CanResume tells whether a mirror may resume: every partition is PAUSED.
func CanResume(states ...State) bool {
	return all(states, func(s State) bool { return s == StatePaused })
}

// CanDelete tells whether a mirror may be deleted: every partition is STOPPED.
func CanDelete(states ...State) bool {
	return all(states, func(s State) bool { return s == StateStopped })
}

func all(states []State, ok func(State) bool) bool {
	for _, s := range states {
		if !ok(s) {
			return false
		}
	}
	return true
}
