package rings

import (
	"crypto/rand"
	"maps"
	"time"

	"qtls.dev/qtls/internal/tickets"
)

// record is what a Secret remembers of a ring. The keys themselves are not in
// it: who reads the Secret still needs the store, and the other way round.
type record struct {
	// Name, after the ring's ID, under which the store has it: another record,
	// as of another cluster that uses the same store, is of another ring.
	Name string `json:"name"`
	// WrappingKeys open the ring in the store. Current seals it; Coming will,
	// after the next rotation, when every agent has had time to learn of it. A
	// third one sealed what the stores have until it is written to them anew.
	WrappingKeys    tickets.WrappingKeys `json:"wrappingKeys"`
	Current         string               `json:"current"`
	Coming          string               `json:"coming,omitempty"`
	WrappingKeyMade time.Time            `json:"wrappingKeyMade"`
	// Epoch is the highest that was ever given to a key of this ring. It is
	// written before the key is: whoever's write of the Secret succeeds has the
	// number to itself.
	Epoch uint64 `json:"epoch"`
	// LeastEpoch that may still be used: those before were dropped.
	LeastEpoch uint64 `json:"leastEpoch"`
	// Rotated is when the newest key was made.
	Rotated time.Time `json:"rotated"`
	// Rotation is how long a key encrypts: an operator that has just started does
	// not know yet what each gateway says.
	Rotation time.Duration `json:"rotation,omitempty"`
	// Dropped are the values of the annotation that were acted on, by gateway.
	Dropped map[string]string `json:"dropped,omitempty"`
}

// wrappingKeyLife is how long a wrapping key seals.
const wrappingKeyLife = 7 * 24 * time.Hour

// change is what has to be done with the ring itself.
type change int

const (
	keep   change = iota
	rotate        // one new key
	renew         // new keys only
)

// advance says how a ring goes on. known says whether its keys are; at is the
// time; drops are the present values of the gateways' annotation. It is pure
// but for new wrapping keys.
func advance(before record, known bool, rotation time.Duration, at time.Time, drops map[string]string) (record, change) {
	after := before
	after.WrappingKeys, after.Dropped, after.Rotation = maps.Clone(before.WrappingKeys), map[string]string{}, rotation
	do, dropped := keep, false
	for gateway, value := range drops {
		// Nothing is dropped for a gateway that is new: it comes with its
		// annotations.
		was, seen := before.Dropped[gateway]
		dropped = dropped || seen && value != "" && value != was
		after.Dropped[gateway] = value
	}
	since := at.Sub(before.Rotated)
	switch {
	case len(before.WrappingKeys) == 0:
		do = renew
		after.WrappingKeys = nil // made below
		after.Name = rand.Text()[:12]
		// Should this not be the first record: its numbers were lower, for a
		// rotation takes seconds.
		after.Epoch = max(before.Epoch, uint64(max(0, at.Unix())))
		if dropped {
			after.LeastEpoch = after.Epoch + tickets.Size
		}
	case dropped:
		do = renew
		after.WrappingKeys = nil // what leaked may be these
		after.LeastEpoch = before.Epoch + tickets.Size
	case !known:
		do = renew
	case since >= tickets.MostPeriods*rotation:
		do = renew // its keys should have been forgotten meanwhile
	case since >= rotation, since < -rotation: // a clock that was wrong
		do = rotate
	}
	if len(after.WrappingKeys) == 0 {
		name, k := tickets.NewWrappingKey()
		after.WrappingKeys = tickets.WrappingKeys{name: k}
		after.Current, after.Coming, after.WrappingKeyMade = name, "", at
	}
	switch do {
	case rotate:
		after.Epoch++
	case renew:
		after.Epoch += tickets.Size
	default:
		return after, do
	}
	after.Rotated = at
	after.renewWrappingKey(at)
	return after, do
}

// renewWrappingKey is called at each rotation. At one a new wrapping key is
// made; from the next on it seals. The former one is forgotten when the stores
// have a ring under the new one, and one rotation later also if they have not.
func (r *record) renewWrappingKey(at time.Time) {
	r.forgetFormerWrappingKey()
	switch age := at.Sub(r.WrappingKeyMade); {
	case r.Coming != "":
		r.Current, r.Coming, r.WrappingKeyMade = r.Coming, "", at
	case age >= wrappingKeyLife, age < -wrappingKeyLife:
		name, k := tickets.NewWrappingKey()
		r.WrappingKeys[name], r.Coming = k, name
	}
}

// forgetFormerWrappingKey forgets the one that sealed before the current one.
func (r *record) forgetFormerWrappingKey() {
	maps.DeleteFunc(r.WrappingKeys, func(name string, _ tickets.WrappingKey) bool { return name != r.Current && name != r.Coming })
}

// next is when time alone changes something.
func (r record) next(rotation time.Duration) time.Time { return r.Rotated.Add(rotation) }
