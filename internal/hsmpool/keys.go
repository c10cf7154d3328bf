package hsmpool

import (
	"bytes"
	"context"
	"crypto"
	"fmt"
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
}

// Find a key that there is.
func (k Keys) Find(ctx context.Context, r keypair.Reference) (crypto.Signer, error) {
	members, err := k.open(ctx, r.Pool)
	if err != nil {
		return nil, err
	}
	return k.signer(ctx, r, ask(ctx, members, hsm.Key{Label: r.Label}))
}

// Provide a key: the first member makes it where no member has it. A member
// that does not answer might have it already, so that all have to answer for
// that.
func (k Keys) Provide(ctx context.Context, r keypair.Reference, algorithm v1alpha1.KeyAlgorithm) (crypto.Signer, error) {
	members, err := k.open(ctx, r.Pool)
	if err != nil {
		return nil, err
	}
	c := ask(ctx, members, hsm.Key{Label: r.Label})
	if len(c.having) == 0 && len(c.silent) == 0 {
		maker := members[0]
		if _, err := maker.Client.Generate(ctx, algorithm, hsm.Key{Label: r.Label}); err != nil {
			return nil, conditions.Waiting(lookAgain, v1alpha1.ReasonHSMNotReady, "HSMPool %q, member %q: %v", r.Pool, maker.Name, err)
		}
		c = ask(ctx, members, hsm.Key{Label: r.Label})
	}
	signer, err := k.signer(ctx, r, c)
	if err != nil {
		return nil, err
	}
	if is, err := keypair.AlgorithmOf(signer.Public()); err != nil || is != algorithm {
		return nil, conditions.Stalled(v1alpha1.ReasonKeyMismatch, "HSMPool %q: key %q is of algorithm %s, and %s is wanted", r.Pool, r.Label, is, algorithm)
	}
	return signer, nil
}

// Retire a key in every member. One that is not there is retired.
func (k Keys) Retire(ctx context.Context, r keypair.Reference) error {
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
		return nil, conditions.Waiting(lookAgain, v1alpha1.ReasonHSMPoolNotFound, "HSMPool %q is not there in namespace %q; create it, or name another in keyStorage.hsmRef", name, k.Namespace)
	case err != nil:
		return nil, fmt.Errorf("HSMPool %s/%s: %w", k.Namespace, name, err)
	}
	return k.Clients.Open(ctx, k.Secrets, pool)
}

// signer of a key that members were asked for.
func (k Keys) signer(ctx context.Context, r keypair.Reference, c census) (crypto.Signer, error) {
	if err := c.problem(r); err != nil {
		return nil, err
	}
	var clients []*hsm.Client
	for _, h := range c.having {
		clients = append(clients, h.client)
	}
	signer, err := hsm.NewSigner(ctx, hsm.Key{Label: r.Label}, clients...)
	if err != nil {
		return nil, conditions.Waiting(lookAgain, v1alpha1.ReasonHSMNotReady, "HSMPool %q: %v", r.Pool, err)
	}
	return signer, nil
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

// problem that keeps a key from being used. It is pure.
func (c census) problem(r keypair.Reference) error {
	if len(c.having) == 0 {
		if len(c.silent) > 0 {
			return conditions.Waiting(lookAgain, v1alpha1.ReasonHSMNotReady, "HSMPool %q: whether key %q is there, or has to be made, cannot be told: %s", r.Pool, r.Label, strings.Join(c.silent, "; "))
		}
		return conditions.Waiting(lookAgain, v1alpha1.ReasonKeyNotInEveryMember, "HSMPool %q: no member has key %q", r.Pool, r.Label)
	}
	first := c.having[0]
	for _, h := range c.having {
		if !bytes.Equal(h.object.PublicKey, first.object.PublicKey) {
			return conditions.Waiting(lookAgain, v1alpha1.ReasonKeyMismatch,
				"HSMPool %q: key %q of member %q is another one than that of member %q; destroy one of them, and replicate the other", r.Pool, r.Label, h.member, first.member)
		}
		if !h.object.Sensitive || h.object.Extractable {
			return conditions.Waiting(lookAgain, v1alpha1.ReasonKeyNotProtected,
				"HSMPool %q, member %q: key %q could leave the token (CKA_SENSITIVE %t, CKA_EXTRACTABLE %t); it is not used", r.Pool, h.member, r.Label, h.object.Sensitive, h.object.Extractable)
		}
	}
	if len(c.lacking) > 0 {
		return conditions.Waiting(lookAgain, v1alpha1.ReasonKeyNotInEveryMember,
			"HSMPool %q: key %q is in member %q and not in %s; replicate it with the HSM's own means, or take those from the pool", r.Pool, r.Label, first.member, strings.Join(c.lacking, ", "))
	}
	return nil
}
