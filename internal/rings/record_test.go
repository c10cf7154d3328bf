package rings

import (
	"maps"
	"reflect"
	"testing"
	"time"

	"qtls.dev/qtls/internal/tickets"
)

const period = 2 * time.Hour

var start = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

// first is the record of a new ring.
func first() record {
	r, _ := advance(record{}, false, period, start, map[string]string{"web": ""})
	return r
}

func TestANewRing(t *testing.T) {
	r, do := advance(record{}, false, period, start, map[string]string{"web": "2026-10-31"})
	if do != renew || r.Epoch != uint64(start.Unix())+tickets.Size || r.Name == "" || r.LeastEpoch != 0 || len(r.WrappingKeys) != 1 || !r.Rotated.Equal(start) {
		t.Errorf("%d, %+v", do, r)
	}
	if _, ok := r.WrappingKeys[r.Current]; !ok {
		t.Error("there is no key to seal it with")
	}
	if again, do := advance(r, true, period, start, map[string]string{"web": "2026-10-31"}); do != keep || !reflect.DeepEqual(again, r) {
		t.Errorf("nothing has happened, and: %d, %+v", do, again)
	}
}

// Agents use no keys with lower numbers than those they have.
func TestARecordThatIsMadeAnewHasHigherNumbers(t *testing.T) {
	r := first()
	const shortest = 10 * time.Second
	at := start
	for range 1000 {
		at = at.Add(shortest)
		r, _ = advance(r, true, shortest, at, nil)
	}
	if again, _ := advance(record{}, false, shortest, at.Add(time.Second), nil); again.Epoch <= r.Epoch || again.Name == r.Name {
		t.Errorf("epoch %d after %d, names %s and %s", again.Epoch, r.Epoch, again.Name, r.Name)
	}
}

func TestARingIsRotatedWhenItsTimeHasCome(t *testing.T) {
	for _, c := range []struct {
		name  string
		after time.Duration
		want  change
	}{
		{"at once", 0, keep}, {"just before", period - time.Second, keep}, {"in time", period, rotate}, {"late", 2 * period, rotate}, {"much too late", 3 * period, renew},
		{"a clock that is somewhat behind", -time.Minute, keep}, {"a clock that was wrong", -period - time.Second, rotate},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, do := advance(first(), true, period, start.Add(c.after), map[string]string{"web": ""})
			if do != c.want || do == rotate && (r.Epoch != first().Epoch+1 || !r.Rotated.Equal(start.Add(c.after))) || r.LeastEpoch != 0 {
				t.Errorf("%d, epoch %d, want %d", do, r.Epoch, c.want)
			}
		})
	}
}

func TestARingThatIsLostIsRenewed(t *testing.T) {
	before := first()
	r, do := advance(before, false, period, start.Add(time.Minute), map[string]string{"web": ""})
	if do != renew || r.Epoch != before.Epoch+tickets.Size || r.LeastEpoch != 0 || r.Current != before.Current {
		t.Errorf("%d, %+v", do, r)
	}
}

func TestDroppedTicketsAreDroppedOnce(t *testing.T) {
	before := first()
	asked := map[string]string{"web": "now"}
	r, do := advance(before, true, period, start.Add(time.Minute), asked)
	if do != renew || r.LeastEpoch != r.Epoch || r.Epoch < before.Epoch+tickets.Size {
		t.Errorf("%d, epochs %d from %d", do, r.Epoch, r.LeastEpoch)
	}
	if _, ok := r.WrappingKeys[before.Current]; ok {
		t.Error("the wrapping key, which may have leaked too, is still there")
	}
	if _, do := advance(r, true, period, start.Add(2*time.Minute), asked); do != keep {
		t.Error("dropped again without being asked")
	}
	if _, do := advance(r, true, period, start.Add(2*time.Minute), map[string]string{"web": ""}); do != keep {
		t.Error("dropped by taking the annotation away")
	}
	joined := map[string]string{"web": "now", "new": "yesterday"}
	if _, do := advance(r, true, period, start.Add(2*time.Minute), joined); do != keep {
		t.Error("dropped by a gateway that joins")
	}
}

func TestAWrappingKeyIsReplacedInTwoSteps(t *testing.T) {
	r := first()
	old := r.Current
	at := start.Add(wrappingKeyLife)
	r, _ = advance(r, true, period, at, nil)
	if r.Current != old || r.Coming == "" || len(r.WrappingKeys) != 2 {
		t.Fatalf("first the new one is made known: %+v", r)
	}
	coming := r.Coming
	if same, _ := advance(r, true, period, at.Add(period-time.Second), nil); same.Current != old {
		t.Error("it seals before every agent can know it")
	}
	r, _ = advance(r, true, period, at.Add(period), nil)
	if _, kept := r.WrappingKeys[old]; r.Current != coming || r.Coming != "" || !kept {
		t.Errorf("then it seals, and the old one opens what the stores have: %+v", r)
	}
	stored := r
	stored.WrappingKeys = maps.Clone(r.WrappingKeys)
	if stored.forgetFormerWrappingKey(); len(stored.WrappingKeys) != 1 || stored.WrappingKeys[coming] != r.WrappingKeys[coming] {
		t.Errorf("when they have what it seals, the old one is forgotten: %+v", stored)
	}
	if r, _ = advance(r, true, period, at.Add(2*period), nil); r.Coming != "" || r.Current != coming || len(r.WrappingKeys) != 1 {
		t.Errorf("one rotation later also if they have not; and the new one stays for its time: %+v", r)
	}
}

func TestEpochsOnlyGrow(t *testing.T) {
	r := first()
	for i := range 100 {
		next, do := advance(r, i%7 != 0, period, start.Add(time.Duration(i*i%50)*time.Hour), map[string]string{"web": string(rune('a' + i/10))})
		if next.Epoch < r.Epoch || do != keep && next.Epoch == r.Epoch || next.LeastEpoch < r.LeastEpoch || next.LeastEpoch > next.Epoch {
			t.Fatalf("step %d: epochs %d (least %d) after %d (%d)", i, next.Epoch, next.LeastEpoch, r.Epoch, r.LeastEpoch)
		}
		r = next
	}
}
