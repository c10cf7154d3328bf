package tickets

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

func TestARotationKeepsWhatEncryptsAndWhatComesNext(t *testing.T) {
	a := New(7)
	b := a.Next(8)
	if b.Epoch != 8 || b.Keys[0] != a.Keys[1] || b.Keys[1] != a.Keys[2] || slices.Contains(a.Keys[:], b.Keys[2]) {
		t.Errorf("after a rotation: epoch %d, keys %x of %x", b.Epoch, b.Keys, a.Keys)
	}
}

func TestPushesBringHAProxyToARing(t *testing.T) {
	a := New(3)
	b := a.Next(4)
	c := b.Next(5)
	d := c.Next(6)
	other := New(9)
	for _, c := range []struct {
		name     string
		from, to Ring
		pushes   int
	}{
		{"the same", a, a, 0}, {"one rotation", a, b, 1}, {"two", a, c, 2}, {"three", a, d, 3}, {"another ring", a, other, 3}, {"back", d, a, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			pushes := Pushes(c.from, c.to)
			if len(pushes) != c.pushes {
				t.Errorf("%d pushes, want %d", len(pushes), c.pushes)
			}
			has := c.from.Keys
			for _, k := range pushes { // what HAProxy does with each
				has = [Size]Key{has[1], has[2], k}
			}
			if has != c.to.Keys {
				t.Error("HAProxy has other keys in the end")
			}
		})
	}
}

func TestScopesShareNoKey(t *testing.T) {
	ring := New(1)
	seen := map[Key]string{}
	for _, scope := range []string{"", "a", "b", "ab"} {
		for i, k := range ring.For(scope).Keys {
			name := fmt.Sprintf("key %d of scope %q", i, scope)
			if is, ok := seen[k]; ok {
				t.Errorf("%s is %s", name, is)
			}
			if slices.Contains(ring.Keys[:], k) {
				t.Errorf("%s is the ring's own", name)
			}
			seen[k] = name
		}
	}
	if ring.For("a") != ring.For("a") {
		t.Error("replicas derive different keys")
	}
}

func TestTheFileHasOneKeyToALine(t *testing.T) {
	ring := New(1)
	lines := strings.Split(strings.TrimSuffix(string(ring.File()), "\n"), "\n")
	if len(lines) != Size || lines[0] != ring.Keys[0].Base64() || lines[2] != ring.Keys[2].Base64() || len(lines[1]) != 108 {
		t.Errorf("%d lines, the second of %d characters", len(lines), len(lines[1]))
	}
}

const id = "0123456789abcdef"

func TestASealedRingOpens(t *testing.T) {
	ring := New(12)
	name, k := NewWrappingKey()
	otherName, other := NewWrappingKey()
	document := Seal(ring, id, name, k)
	got, err := Open(document, id, WrappingKeys{otherName: other, name: k}, 12)
	if err != nil || got != ring {
		t.Errorf("opened: %v, the same: %v", err, got == ring)
	}
	for _, secret := range ring.Keys {
		if strings.Contains(string(document), secret.Base64()[:20]) || strings.Contains(string(document), string(secret[:16])) {
			t.Error("the document holds a key")
		}
	}
}

func TestADocumentThatIsNotThisRingsIsRefused(t *testing.T) {
	name, k := NewWrappingKey()
	otherName, other := NewWrappingKey()
	document := Seal(New(12), id, name, k)
	changed := func(change func(*sealed)) []byte {
		var s sealed
		if err := json.Unmarshal(document, &s); err != nil {
			t.Fatal(err)
		}
		change(&s)
		b, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	keys := WrappingKeys{name: k}
	for _, c := range []struct {
		name     string
		document []byte
		id       string
		keys     WrappingKeys
		least    uint64
		want     error
	}{
		{"of another ring", document, "fedcba9876543210", keys, 0, ErrDamaged},
		{"relabelled as another ring's", changed(func(s *sealed) { s.Ring = "fedcba9876543210" }), "fedcba9876543210", keys, 0, ErrDamaged},
		{"relabelled as newer", changed(func(s *sealed) { s.Epoch++ }), id, keys, 13, ErrDamaged},
		{"older than what was dropped", document, id, keys, 13, ErrDropped},
		{"under a key that is not here", document, id, WrappingKeys{otherName: other}, 0, ErrWrappingKey},
		{"under another key of that name", document, id, WrappingKeys{name: other}, 0, ErrDamaged},
		{"relabelled as under another key", changed(func(s *sealed) { s.WrappingKey = otherName }), id, WrappingKeys{otherName: k}, 0, ErrDamaged},
		{"a bit changed", changed(func(s *sealed) { s.Ciphertext[100] ^= 1 }), id, keys, 0, ErrDamaged},
		{"another nonce", changed(func(s *sealed) { s.Nonce[0] ^= 1 }), id, keys, 0, ErrDamaged},
		{"a short nonce", changed(func(s *sealed) { s.Nonce = s.Nonce[1:] }), id, keys, 0, ErrDamaged},
		{"without a nonce", changed(func(s *sealed) { s.Nonce = nil }), id, keys, 0, ErrDamaged},
		{"cut", document[:len(document)-9], id, keys, 0, ErrDamaged},
		{"empty", nil, id, keys, 0, ErrDamaged},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := Open(c.document, c.id, c.keys, c.least); !errors.Is(err, c.want) {
				t.Errorf("%v, want %v", err, c.want)
			}
		})
	}
}

func TestKeysDoNotPrint(t *testing.T) {
	_, w := NewWrappingKey()
	for _, v := range []any{NewKey(), New(1), &Ring{}, w, WrappingKeys{"a": w}} {
		for _, format := range []string{"%v", "%+v", "%s", "%#v"} {
			if s := fmt.Sprintf(format, v); len(s) > 200 || !strings.Contains(s, "key]") {
				t.Errorf("%T as %s: %.100s", v, format, s)
			}
		}
	}
}

func FuzzOpen(f *testing.F) {
	name, k := NewWrappingKey()
	ring := New(12)
	f.Add(Seal(ring, id, name, k))
	f.Add([]byte(`{"ring":"0123456789abcdef"}`))
	f.Fuzz(func(t *testing.T, document []byte) {
		if got, err := Open(document, id, WrappingKeys{name: k}, 0); err == nil && got != ring {
			t.Error("a document that nobody sealed opens")
		}
	})
}

func TestWrappingKeysTravel(t *testing.T) {
	name, k := NewWrappingKey()
	b, err := json.Marshal(WrappingKeys{name: k})
	if err != nil {
		t.Fatal(err)
	}
	var got WrappingKeys
	if err := json.Unmarshal(b, &got); err != nil || got[name] != k {
		t.Errorf("%v, the same: %v", err, got[name] == k)
	}
	for _, bad := range []string{`{"a":"AAAA"}`, `{"a":"?"}`, `{"a":""}`} {
		if err := json.Unmarshal([]byte(bad), &got); err == nil || strings.Contains(err.Error(), "AAAA") {
			t.Errorf("%s: %v", bad, err)
		}
	}
}
