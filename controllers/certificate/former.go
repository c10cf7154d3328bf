package certificate

import (
	"encoding/json"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/keypair"
)

const (
	// followed is how long a key stays after it was replaced: by then every
	// gateway has followed, also one whose pod was without the API server for a
	// while. Renewals may come closer together than that.
	followed = time.Hour
	// mostFormer keys are kept in mind: more than renewals a minute apart
	// replace meanwhile, and few enough for an annotation.
	mostFormer = 100
)

// formerKey was made in an HSM for a certificate, which has another now.
type formerKey struct {
	keypair.Reference
	// replaced is when the other came.
	replaced time.Time
	// maker as in record.
	maker types.UID
}

// idle says that who follows signs with it no more. Who does not, whoKeeps tells.
func (k formerKey) idle(now time.Time) bool { return !now.Before(k.replaced.Add(followed)) }

// storedFormerKey is a formerKey in the annotation of its certificate's Secret.
type storedFormerKey struct {
	URI      string    `json:"uri"`
	Replaced time.Time `json:"replaced"`
	Maker    types.UID `json:"maker,omitempty"`
}

// parseFormerKeys reads an annotation's value. What does not parse names none.
func parseFormerKeys(value string) []formerKey {
	var stored []storedFormerKey
	if json.Unmarshal([]byte(value), &stored) != nil {
		return nil
	}
	var keys []formerKey
	for _, k := range stored {
		if r, err := keypair.ParseURI(k.URI); err == nil {
			keys = append(keys, formerKey{r, k.Replaced, k.Maker})
		}
	}
	return keys
}

func formatFormerKeys(keys []formerKey) string {
	if len(keys) == 0 {
		return ""
	}
	var stored []storedFormerKey
	for _, k := range keys {
		stored = append(stored, storedFormerKey{k.URI(), k.replaced.UTC(), k.maker})
	}
	value, err := json.Marshal(stored)
	if err != nil {
		panic(err) // strings and times of this age always marshal
	}
	return string(value)
}

// formerKeys are those that a certificate has had when the next key is stored:
// what was to be destroyed before, and what serves until now. A key that was
// there before it was used is not among them, nor one that serves on, whichever
// pool it comes by, nor one that was made for another certificate, whose Secret
// this one may be a copy of. One of which nothing says any more whether it was made
// is among them, without a maker: it is told, and not destroyed. The oldest of too
// many are dropped. It is pure.
func (s state) formerKeys(next keypair.Reference, now time.Time) (keys, dropped []formerKey) {
	if s.Secret == nil {
		return nil, nil
	}
	present, inHSM := s.presentKey()
	keys = slices.DeleteFunc(parseFormerKeys(s.Secret.Annotations[v1alpha1.AnnotationPreviousKeys]), func(k formerKey) bool {
		return k.Label == present.Label || k.Label == next.Label || !madeUnder(s.Secret.Name, k.Label)
	})
	made := s.Has.Key == "" && madeUnder(s.Secret.Name, present.Label)
	if inHSM && made && present.Label != next.Label {
		keys = append(keys, formerKey{present, now, s.Has.Maker})
	}
	first := max(0, len(keys)-mostFormer)
	return keys[first:], keys[:first]
}
