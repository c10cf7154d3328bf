package hsmpool

import (
	"bytes"
	"context"
	"crypto"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/conditions"
	"qtls.dev/qtls/internal/hsm"
	"qtls.dev/qtls/internal/keypair"
)

// lookAgain is when to ask members again that could not help.
const lookAgain = 10 * time.Second

// Keys are the private keys of the pools of a namespace. Errors that are not of
// the API server are each a *conditions.Problem.
type Keys struct {
	Clients *Clients
	// Pools reads HSMPools, Secrets reads Secrets.
	Pools, Secrets client.Reader
	Namespace      string
	// Found, if set, remembers the keys that Find found.
	Found *Found
}

// Find a key that there is, to sign with it now: one member that has it is
// enough.
func (k Keys) Find(ctx context.Context, r keypair.Reference) (crypto.Signer, error) {
	members, err := k.open(ctx, r.Pool)
	if err != nil {
		return nil, err
	}
	if s, ok := k.Found.recall(k.Namespace, r, members); ok {
		return signer{s.With(ctx), r.Pool}, nil
	}
	s, err := k.signer(ctx, r, ask(ctx, members, hsm.Key{Label: r.Label}))
	if err != nil {
		return nil, err
	}
	k.Found.remember(k.Namespace, r, members, s.Signer)
	return s, nil
}

// Look for a key as Find does, whatever is remembered; and for what it lacks: the
// members that say that they do not have it, and what to do, empty where there are
// none.
func (k Keys) Look(ctx context.Context, r keypair.Reference) (key crypto.Signer, lacks string, err error) {
	members, err := k.open(ctx, r.Pool)
	if err != nil {
		return nil, "", err
	}
	c := ask(ctx, members, hsm.Key{Label: r.Label})
	s, err := k.signer(ctx, r, c)
	if err != nil {
		return nil, "", err
	}
	return s, c.lacks(r), nil
}

// Absent says that no member has a key, without what to do about it.
func Absent(r keypair.Reference) string {
	return fmt.Sprintf("HSMPool %q: no member has key %q", r.Pool, r.Label)
}

// Use a key that there is for a new certificate: every member has to have it,
// and it has to be of an algorithm.
func (k Keys) Use(ctx context.Context, r keypair.Reference, algorithm v1alpha1.KeyAlgorithm) (crypto.Signer, error) {
	members, err := k.open(ctx, r.Pool)
	if err != nil {
		return nil, err
	}
	c := ask(ctx, members, hsm.Key{Label: r.Label})
	if err := c.unanimous(r); err != nil {
		return nil, err
	}
	return k.forCertificate(ctx, r, c, algorithm)
}

// Keep using the key of a certificate that is replaced: it is never made, for
// another one of its name would be nobody's authority. A member that is away
// had it, or will.
func (k Keys) Keep(ctx context.Context, r keypair.Reference, algorithm v1alpha1.KeyAlgorithm) (crypto.Signer, error) {
	members, err := k.open(ctx, r.Pool)
	if err != nil {
		return nil, err
	}
	c := ask(ctx, members, hsm.Key{Label: r.Label})
	if len(c.having) == 0 && len(c.silent) == 0 {
		return nil, conditions.Waiting(lookAgain, v1alpha1.ReasonKeyNotFound,
			"%s, which the present certificate is for; restore it with the HSM's own means; where one that was made for the certificate is lost for good, delete the certificate's Secret, and a new key is made", Absent(r))
	}
	return k.forCertificate(ctx, r, c, algorithm)
}

// Provide a key: the first member makes it where no member has it. A member
// that does not answer might have it already, so that all have to answer for
// that. What takes longer than another request may is a problem of the moment: it
// goes on meanwhile, and is not begun a second time.
func (k Keys) Provide(ctx context.Context, r keypair.Reference, algorithm v1alpha1.KeyAlgorithm) (crypto.Signer, error) {
	members, err := k.open(ctx, r.Pool)
	if err != nil {
		return nil, err
	}
	var c census
	key, patience := namedKey{k.Namespace, r}, time.Duration(0)
	under := k.Clients.underWay(key)
	if under == nil {
		c = ask(ctx, members, hsm.Key{Label: r.Label})
		if len(c.having) == 0 && len(c.silent) == 0 {
			under, patience = k.Clients.make(key, algorithm, members[0]), members[0].timeout
		}
	}
	if under != nil {
		if !under.wait(ctx, patience) {
			return nil, beingMade(r, under)
		}
		k.Clients.settle(key, under)
		c = ask(ctx, members, hsm.Key{Label: r.Label})
		// One whose answer was lost is there all the same.
		if under.err != nil && len(c.having) == 0 {
			return nil, conditions.Waiting(lookAgain, v1alpha1.ReasonHSMNotReady, "HSMPool %q, member %q: key %q could not be made: %v", r.Pool, under.member, r.Label, under.err)
		}
	}
	if err := c.unanimous(r); err != nil {
		return nil, err
	}
	return k.forCertificate(ctx, r, c, algorithm)
}

// forCertificate is the key that members were asked for, if it is fit to serve
// with, whichever of them is lost.
func (k Keys) forCertificate(ctx context.Context, r keypair.Reference, c census, algorithm v1alpha1.KeyAlgorithm) (crypto.Signer, error) {
	s, err := k.signer(ctx, r, c)
	if err != nil {
		return nil, err
	}
	is, err := keypair.AlgorithmOf(s.Public())
	switch {
	case err != nil:
		return nil, conditions.Waiting(lookAgain, v1alpha1.ReasonKeyMismatch, "HSMPool %q: key %q is of no use, %s is wanted: %v; name another in spec.existingKeys", r.Pool, r.Label, algorithm, err)
	case is != algorithm:
		return nil, conditions.Waiting(lookAgain, v1alpha1.ReasonKeyMismatch, "HSMPool %q: key %q is of algorithm %s, and %s is wanted; name another in spec.existingKeys", r.Pool, r.Label, is, algorithm)
	case len(c.lacking) > 0:
		return nil, conditions.Waiting(lookAgain, v1alpha1.ReasonKeyNotInEveryMember, "%s", c.lacks(r))
	}
	return s, nil
}

// Retire a key in every member. One that is not there is retired, but not one
// that is being made.
func (k Keys) Retire(ctx context.Context, r keypair.Reference) error {
	if m := k.Clients.underWay(namedKey{k.Namespace, r}); m != nil && !m.ended() {
		return beingMade(r, m)
	}
	members, err := k.open(ctx, r.Pool)
	if err != nil {
		return err
	}
	var left []string
	for _, m := range members {
		var err error
		if m.Problem != nil {
			err = m.Problem
		} else {
			err = m.Client.Retire(ctx, hsm.Key{Label: r.Label})
		}
		if err != nil && hsm.CodeOf(err) != hsm.KeyHandleInvalid {
			left = append(left, err.Error())
		}
	}
	if len(left) > 0 {
		return conditions.Waiting(lookAgain, v1alpha1.ReasonHSMNotReady, "HSMPool %q: key %q is of no use any more, and cannot be destroyed: %s", r.Pool, r.Label, strings.Join(left, "; "))
	}
	return nil
}

func (k Keys) open(ctx context.Context, name string) ([]Member, error) {
	pool := &v1alpha1.HSMPool{}
	err := k.Pools.Get(ctx, client.ObjectKey{Namespace: k.Namespace, Name: name}, pool)
	switch {
	case apierrors.IsNotFound(err):
		return nil, conditions.Waiting(lookAgain, v1alpha1.ReasonHSMPoolNotFound, "HSMPool %q is not there in namespace %q; create it", name, k.Namespace)
	case err != nil:
		return nil, fmt.Errorf("HSMPool %s/%s: %w", k.Namespace, name, err)
	}
	return k.Clients.Open(ctx, k.Secrets, pool)
}

// signer of a key that members were asked for.
func (k Keys) signer(ctx context.Context, r keypair.Reference, c census) (signer, error) {
	if err := c.problem(r); err != nil {
		return signer{}, err
	}
	var clients []*hsm.Client
	for _, h := range c.having {
		clients = append(clients, h.client)
	}
	s, err := hsm.SignerOf(ctx, hsm.Key{Label: r.Label}, c.having[0].object, clients...)
	if err != nil {
		return signer{}, conditions.Waiting(lookAgain, v1alpha1.ReasonKeyMismatch, "HSMPool %q: %v", r.Pool, err)
	}
	return signer{s, r.Pool}, nil
}

// signer is a key of a pool. That no member signs is a problem of the moment,
// unless it is the request that they refuse.
type signer struct {
	*hsm.Signer
	pool string
}

// Sign as crypto.Signer has it.
func (s signer) Sign(random io.Reader, digest []byte, opts crypto.SignerOpts) ([]byte, error) {
	signature, err := s.Signer.Sign(random, digest, opts)
	if err != nil && !hsm.RequestAtFault(err) {
		return nil, conditions.Waiting(lookAgain, v1alpha1.ReasonHSMNotReady, "HSMPool %q: no member signs: %v", s.pool, err)
	}
	return signature, err
}

// Found remembers keys that were found for a minute: who signs often does not
// ask all members for the key each time. A member that lost it meanwhile says
// so, and the next one signs.
type Found struct {
	mu   sync.Mutex
	keys map[namedKey]found
}

type found struct {
	signer *hsm.Signer
	// clients of the members that were asked, so that a pool that was changed
	// is asked anew.
	clients []*hsm.Client
	at      time.Time
}

const foundFor = time.Minute

func (f *Found) recall(namespace string, r keypair.Reference, members []Member) (*hsm.Signer, bool) {
	if f == nil {
		return nil, false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	k, ok := f.keys[namedKey{namespace, r}]
	return k.signer, ok && time.Since(k.at) < foundFor && slices.Equal(k.clients, clientsOf(members))
}

func (f *Found) remember(namespace string, r keypair.Reference, members []Member, s *hsm.Signer) {
	if f == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for k, v := range f.keys { // those that nobody asks for any more
		if time.Since(v.at) >= foundFor {
			delete(f.keys, k)
		}
	}
	if f.keys == nil {
		f.keys = map[namedKey]found{}
	}
	f.keys[namedKey{namespace, r}] = found{s, clientsOf(members), time.Now()}
}

func clientsOf(members []Member) []*hsm.Client {
	var clients []*hsm.Client
	for _, m := range members {
		clients = append(clients, m.Client)
	}
	return clients
}

// census of a key: which members have it, which have not, and which do not say.
type census struct {
	having  []holding
	lacking []string
	silent  []string
}

type holding struct {
	member string
	client *hsm.Client
	object hsm.Object
}

// ask every member for a key, at once.
func ask(ctx context.Context, members []Member, key hsm.Key) census {
	objects, errs := make([]hsm.Object, len(members)), make([]error, len(members))
	var asked sync.WaitGroup
	for i, m := range members {
		if m.Problem != nil {
			errs[i] = m.Problem
			continue
		}
		asked.Go(func() { objects[i], errs[i] = m.Client.Find(ctx, key) })
	}
	asked.Wait()
	var c census
	for i, m := range members {
		switch {
		case errs[i] == nil:
			c.having = append(c.having, holding{m.Name, m.Client, objects[i]})
		case hsm.CodeOf(errs[i]) == hsm.KeyHandleInvalid:
			c.lacking = append(c.lacking, fmt.Sprintf("%q", m.Name))
		default:
			c.silent = append(c.silent, fmt.Sprintf("member %q: %v", m.Name, errs[i]))
		}
	}
	return c
}

// lacks says which members do not have a key that another has; empty where all do. It
// is pure.
func (c census) lacks(r keypair.Reference) string {
	if len(c.lacking) == 0 {
		return ""
	}
	return fmt.Sprintf("HSMPool %q: key %q is in member %q and not in %s; replicate it with the HSM's own means, or take those from the pool",
		r.Pool, r.Label, c.having[0].member, strings.Join(c.lacking, ", "))
}

// unanimous is the problem that a member does not say whether it has a key.
// Otherwise one that lacks it would only have to go away. It is pure.
func (c census) unanimous(r keypair.Reference) error {
	if len(c.silent) == 0 {
		return nil
	}
	return conditions.Waiting(lookAgain, v1alpha1.ReasonHSMNotReady,
		"HSMPool %q: whether every member has key %q cannot be told; bring back, or take from the pool: %s", r.Pool, r.Label, strings.Join(c.silent, "; "))
}

// problem that keeps a key from being used. It is pure.
func (c census) problem(r keypair.Reference) error {
	if len(c.having) == 0 {
		if len(c.silent) > 0 {
			return conditions.Waiting(lookAgain, v1alpha1.ReasonHSMNotReady, "HSMPool %q: whether key %q is there cannot be told; bring back, or take from the pool: %s", r.Pool, r.Label, strings.Join(c.silent, "; "))
		}
		return conditions.Waiting(lookAgain, v1alpha1.ReasonKeyNotFound, "%s; restore it with the HSM's own means, or name another where it is referred to", Absent(r))
	}
	first := c.having[0]
	for _, h := range c.having {
		if !bytes.Equal(h.object.PublicKey, first.object.PublicKey) {
			return conditions.Waiting(lookAgain, v1alpha1.ReasonKeyMismatch,
				"HSMPool %q: key %q of member %q is another one than that of member %q; destroy one of them, and replicate the other", r.Pool, r.Label, h.member, first.member)
		}
		if !h.object.Sensitive || h.object.Extractable {
			return conditions.Waiting(lookAgain, v1alpha1.ReasonKeyNotProtected,
				"HSMPool %q, member %q: key %q could leave the token (CKA_SENSITIVE %t, CKA_EXTRACTABLE %t), and is not used; correct the token's policy, and have a key made anew, or name another", r.Pool, h.member, r.Label, h.object.Sensitive, h.object.Extractable)
		}
	}
	return nil
}
