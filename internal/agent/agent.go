// Package agent keeps the HAProxy of one gateway pod running what the operator
// publishes. One goroutine owns the state: it takes in what is observed (the
// gateway's ConfigMap, Secrets, HAProxy itself), a pure function decides on the
// next action, and the action's outcome is the new state. Whatever goes wrong,
// HAProxy keeps serving its last good configuration.
package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"qtls.dev/qtls/internal/cgroup"
	"qtls.dev/qtls/internal/dataplane"
	"qtls.dev/qtls/internal/haproxy"
	"qtls.dev/qtls/internal/haproxy/runtime"
	"qtls.dev/qtls/internal/tickets"
	"qtls.dev/qtls/internal/ticketstore"
)

// Options of an agent.
type Options struct {
	Namespace, Gateway, Pod string
	// RunDir is the folder that HAProxy and the agent share.
	RunDir string
	// HAProxy is the program that checks configurations.
	HAProxy string
	// Libraries that HAProxy's container has.
	Libraries dataplane.Libraries
	// Objects is where the ConfigMap and the Secrets come from.
	Objects Objects
	// OpenStore of ticket keys; nil: as package ticketstore does.
	OpenStore func(ticketstore.Connection) (RingStore, error)
	Log       *slog.Logger
	Metrics   *Metrics
}

// Objects delivers one named object and its changes until the context ends.
// Object is nil when there is none. A problem with reading it is an error; what
// was delivered before then stands.
type Objects interface {
	ConfigMap(ctx context.Context, name string, deliver func(*corev1.ConfigMap, error))
	Secret(ctx context.Context, name string, deliver func(*corev1.Secret, error))
}

const (
	// lookUp and lookDown are how often HAProxy is looked at while it runs and
	// while it does not.
	lookUp, lookDown = time.Second, 100 * time.Millisecond
	// retryFirst to retryMost space the tries of an action that failed for a
	// reason that may pass.
	retryFirst, retryMost = 200 * time.Millisecond, 10 * time.Second
	// checkTimeout bounds `haproxy -c`.
	checkTimeout = time.Minute
	// retryPort is how long a configuration waits for a port that is taken.
	retryPort = 15 * time.Second
	// answerTimeout is how long a new worker may take to answer.
	answerTimeout = 5 * time.Second
)

// Agent of one pod.
type Agent struct {
	Options
	trees  trees
	master runtime.Master
	status *statusBoard
	health *healthBoard

	// events are changes of observed; the goroutine of Run applies them.
	events chan func()

	// What follows belongs to the goroutine of Run.

	observed
	own
	// unusable is the published target that cannot be run, if any.
	unusable *unusable
	// objectProblems are the problems with reading objects, by kind and name.
	objectProblems map[string]string
	// watched are the Secrets of certificates, watchedMembers those of members of
	// HSMPools.
	watched, watchedMembers map[string]context.CancelFunc
	// accessContent is what access was read from; stopAccess ends the watch of
	// its Secret.
	accessContent []byte
	stopAccess    context.CancelFunc
	follower      follower
	// clock is sinceBoot, but for tests.
	clock func() time.Duration
	// retry is how long to wait after the next action that fails.
	retry   time.Duration
	retryAt time.Time
	// failing is the action that failed last and why.
	failing string
	// handshakes counts what HAProxy's log tells.
	handshakes *handshakes
	// lent is HAProxy's control group.
	lent     borrowed
	programs programs
	// restored is the tree that was last made of one that HAProxy ran, after it
	// had refused to load another.
	restored *tree
}

// New prepares an agent; Run starts it.
func New(o Options) *Agent {
	if o.OpenStore == nil {
		o.OpenStore = openStore
	}
	return &Agent{
		Options:        o,
		trees:          trees{o.RunDir, o.Libraries},
		master:         masterIn(o.RunDir),
		status:         newStatusBoard(o.Pod),
		health:         &healthBoard{},
		events:         make(chan func(), 64),
		observed:       observed{secrets: map[string]secret{}, rings: map[string]seenRing{}, credentials: map[string]credentials{}},
		own:            own{refusedCertificates: map[string]refusedCertificate{}, spare: tickets.New(0), written: map[string]string{}},
		clock:          sinceBoot,
		objectProblems: map[string]string{},
		watched:        map[string]context.CancelFunc{},
		watchedMembers: map[string]context.CancelFunc{},
		retry:          retryFirst,
		handshakes:     newHandshakes(o.Metrics),
	}
}

// Run until the context ends. HAProxy goes on without it.
func (a *Agent) Run(ctx context.Context) error {
	if err := a.takeOver(); err != nil {
		return err
	}
	log, err := listenForLog(filepath.Join(a.RunDir, filepath.Base(haproxy.LogSocket)))
	if err != nil {
		return err
	}
	defer log.Close()
	go readLines(log, a.handshakes.take)
	loans, err := listenForLoans(filepath.Join(a.RunDir, filepath.Base(haproxy.LoanSocket)))
	if err != nil {
		return err
	}
	defer loans.Close()
	go a.lent.borrow(loans, cgroup.Check)

	a.look(ctx)
	go a.Objects.ConfigMap(ctx, dataplane.ObjectName(a.Gateway), func(m *corev1.ConfigMap, err error) {
		a.post(ctx, func() { a.configMap(m, err) })
	})
	look := time.NewTimer(lookDown)
	defer look.Stop()
	for ctx.Err() == nil {
		a.settle(ctx)
		a.watch(ctx)
		a.watchRings(ctx)
		a.report()
		look.Reset(a.pause())
		select {
		case <-ctx.Done():
		case event := <-a.events:
			event()
			a.drainEvents()
		case <-look.C:
			a.look(ctx)
		}
	}
	return nil
}

func (a *Agent) post(ctx context.Context, event func()) {
	select {
	case a.events <- event:
	case <-ctx.Done():
	}
}

// drainEvents takes in all that has been observed by now, so that a burst of
// changes makes one configuration.
func (a *Agent) drainEvents() {
	for {
		select {
		case event := <-a.events:
			event()
		default:
			return
		}
	}
}

func (a *Agent) pause() time.Duration {
	pause := lookUp
	if !a.proxy.up {
		pause = lookDown
	}
	if wait := time.Until(a.retryAt); wait > 0 {
		pause = min(pause, wait)
	}
	return pause
}

// settle does what there is to do.
func (a *Agent) settle(ctx context.Context) {
	for ctx.Err() == nil && !time.Now().Before(a.retryAt) {
		a.now, a.leaving = a.clock(), a.trees.leaving()
		next := decide(a.observed, a.own)
		if next == nil {
			a.retry, a.failing = retryFirst, ""
			return
		}
		started := time.Now()
		if err := a.do(ctx, next); err != nil {
			if ctx.Err() != nil {
				return
			}
			a.failing = fmt.Sprintf("%s: %v", next.describe(), err)
			a.Log.Warn("will be tried again", "action", next.describe(), "error", err, "after", a.retry)
			a.retryAt = time.Now().Add(a.retry)
			a.retry = min(2*a.retry, retryMost)
			a.look(ctx) // what is believed of HAProxy may be out of date
			return
		}
		a.Log.Info("done", "action", next.describe(), "took", time.Since(started).String())
		a.report()
	}
}

// do carries out an action. An error is one that may pass; a refusal of
// HAProxy's is an outcome, which is recorded.
func (a *Agent) do(ctx context.Context, next action) error {
	switch next := next.(type) {
	case install:
		return a.install(ctx, next)
	case load:
		return a.load(ctx)
	case synchronise:
		return a.synchronise(ctx)
	case setCertificate:
		return a.setCertificate(ctx, next)
	case setServers:
		return a.setServers(ctx, next)
	case setTickets:
		return a.setTickets(ctx, next)
	case setCredentials:
		return a.setCredentials(next)
	case clearOld:
		return a.clearOld(ctx, next)
	case note:
		a.current.state = next.state
		return a.trees.writeState(a.current)
	}
	panic(fmt.Sprintf("agent: an action of type %T", next))
}

// takeOver reads back what an earlier process of this agent wrote. Whatever is
// not whole is left alone and written anew.
func (a *Agent) takeOver() error {
	if err := os.MkdirAll(a.trees.path(""), 0o700); err != nil {
		return err
	}
	name, err := a.trees.current()
	if err != nil {
		return err
	}
	if name == "" {
		return nil
	}
	current, err := a.trees.read(name)
	if err != nil {
		a.Log.Warn("the configuration in use cannot be read back; it is replaced by the published one", "tree", name, "error", err)
		return nil
	}
	a.current = current
	a.Log.Info("took over", "tree", name, "generation", current.Target.Generation)
	return nil
}

// look at what HAProxy runs.
func (a *Agent) look(ctx context.Context) {
	now := a.lookAt(ctx)
	if now != a.proxy {
		a.Log.Info("HAProxy", "up", now.up, "tree", now.tree, "pid", now.worker.pid)
	}
	a.proxy = now
	for i, r := range a.refusals {
		if !r.until.IsZero() && time.Now().After(r.until) {
			a.refusals[i].key = ""
		}
	}
	a.lookAtHSM()
	a.health.beat()
}

func (a *Agent) lookAt(ctx context.Context) proxy {
	name, info, ok := a.trees.running(ctx)
	if !ok {
		return proxy{}
	}
	return proxy{up: true, tree: name, worker: worker{info.PID, info.Started}, version: info.Version}
}

// install writes a tree, has it checked, and makes it the one that HAProxy
// starts from. One that runs is told by load.
func (a *Agent) install(ctx context.Context, next install) error {
	started := time.Now()
	written, err := a.trees.write(next.revision, next.state)
	if err != nil {
		return err
	}
	if err := a.check(ctx, written.Name); err != nil {
		a.trees.remove(written.Name)
		return a.refuse(next, next.key(), time.Time{}, err)
	}
	if err := bindable(a.portsToBind(next)); err != nil {
		a.trees.remove(written.Name)
		return a.refuse(next, next.key(), time.Now().Add(retryPort), err)
	}
	if err := a.trees.use(written.Name); err != nil {
		a.trees.remove(written.Name)
		return err
	}
	a.current = written
	a.untried = true
	a.spare = tickets.New(0)
	a.handshakes.setAcceptable(written.Revision.Observe)
	a.health.setStarted()
	a.Metrics.applied("configuration", time.Since(started))
	return nil
}

// portsToBind are the ports of an installation that HAProxy cannot be expected to
// hold. One that starts, or runs what cannot be read back, may hold any of them.
func (a *Agent) portsToBind(next install) []int {
	running := a.running()
	switch {
	case running != nil:
		return newPorts(next.revision.Config, running.Revision.Config)
	case a.proxy.up || a.current != nil:
		return nil
	}
	return portsOf(next.revision.Config)
}

// refuse records that HAProxy refused an installation; any other error may
// pass. The key tells what is not tried again, until then if that is not zero.
func (a *Agent) refuse(next install, key string, until time.Time, err error) error {
	var refused *runtime.Refusal
	if !errors.As(err, &refused) {
		return err
	}
	a.refusals = a.refusals.with(refusal{key: key, until: until, rejection: dataplane.Rejection{
		Target: next.state.Target, Message: refused.Message, Time: time.Now().UTC().Truncate(time.Second)}})
	a.Metrics.rejections.Inc()
	a.Log.Error("HAProxy refuses the configuration; the last good one serves on",
		"revision", next.state.Target.Revision, "generation", next.state.Target.Generation, "message", refused.Message)
	return nil
}

// load has HAProxy take up the current tree.
func (a *Agent) load(ctx context.Context) error {
	started := time.Now()
	if err := a.master.Reload(ctx); err != nil {
		var refused *runtime.Refusal
		if errors.As(err, &refused) {
			return a.putBack(err)
		}
		return err
	}
	info, err := a.answering(ctx, a.current.Name)
	if err != nil {
		return fmt.Errorf("HAProxy says that it has reloaded, but no worker runs the new configuration: %w", err)
	}
	a.proxy = proxy{up: true, tree: a.current.Name, worker: worker{info.PID, info.Started}, version: info.Version}
	a.synchronised = a.proxy.worker
	a.takenUp()
	a.current.Reloads++
	a.Metrics.reloads.Inc()
	a.Metrics.applied("reload", time.Since(started))
	a.trees.removeOthers(a.current.Name)
	return a.trees.writeState(a.current)
}

// takenUp says that HAProxy runs the current tree: what it refused before that was
// installed it may take now.
func (a *Agent) takenUp() {
	if a.untried {
		a.refusals, a.untried = nil, false
	}
}

// putBack makes the configuration that HAProxy runs current again, after it has
// refused to load another: as a new tree, to be loaded in its turn. A worker
// whose successor could not bind its sockets has let go of its own for a while,
// and does not get those back that connect the stages of the gateway; only a
// reload does. HAProxy is left alone where it refuses that one, too: what it
// refused before stays what is told, and is not tried again.
func (a *Agent) putBack(reason error) error {
	former, err := a.trees.read(a.proxy.tree)
	if err != nil {
		return errors.Join(reason, err)
	}
	failed := a.current
	again := failed == a.restored
	if !again {
		if former, err = a.trees.write(former.Revision, former.state); err != nil {
			return errors.Join(reason, err)
		}
	}
	if err := a.trees.use(former.Name); err != nil {
		return errors.Join(reason, err)
	}
	a.current, a.synchronised, a.untried = former, worker{}, false
	a.trees.remove(failed.Name)
	a.handshakes.setAcceptable(former.Revision.Observe)
	if again {
		return fmt.Errorf("HAProxy refuses what it runs, and runs it on: %w", reason)
	}
	a.restored = former
	refused := install{failed.Revision, failed.state}
	return a.refuse(refused, refused.shape(), time.Time{}, reason)
}

// answering waits for the worker that runs a tree.
func (a *Agent) answering(ctx context.Context, tree string) (runtime.Info, error) {
	deadline := time.Now().Add(answerTimeout)
	for {
		info, err := a.trees.admin(tree).Info(ctx)
		if err == nil || ctx.Err() != nil || time.Now().After(deadline) {
			return info, err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// synchronise brings a worker that started by itself, or under an earlier
// process of the agent, to what is in current. It changes only what differs.
func (a *Agent) synchronise(ctx context.Context) error {
	admin := a.trees.admin(a.current.Name)
	for _, c := range a.current.Revision.Certificates {
		wanted := a.current.Certificates[c.Name]
		if wanted == nil {
			continue
		}
		file := haproxy.CertificateFile(c.Name)
		served, err := admin.Certificate(ctx, file)
		if err != nil {
			return err
		}
		if served.SerialNumber == wanted.SerialNumber {
			continue
		}
		if err := admin.SetCertificate(ctx, file, wanted.PEM); err != nil {
			return fmt.Errorf("certificate %s: %w", c.Name, err)
		}
	}
	servers, err := admin.Servers(ctx)
	if err != nil {
		return err
	}
	for _, change := range differences(a.current.Revision, a.current.Slots, servers) {
		if err := setServer(ctx, admin, change); err != nil {
			return err
		}
	}
	if a.current.Revision.Tickets != nil && a.current.Tickets != nil {
		if err := a.pushTickets(ctx, *a.current.Tickets); err != nil {
			return err
		}
	}
	a.synchronised = a.proxy.worker
	a.takenUp()
	a.trees.removeOthers(a.current.Name)
	a.health.setStarted()
	a.handshakes.setAcceptable(a.current.Revision.Observe)
	return nil
}

// setCertificate replaces a chain and key, in HAProxy and then in the tree. The
// other way round, a certificate that HAProxy refuses would be what it starts
// from.
func (a *Agent) setCertificate(ctx context.Context, next setCertificate) error {
	file := haproxy.CertificateFile(next.name)
	// The module learns of a key in an HSM from its file, when it does not find it.
	if err := a.trees.writeHSM(a.current, next.certificate); err != nil {
		return err
	}
	if a.proxy.up {
		admin := a.trees.admin(a.current.Name)
		err := admin.SetCertificate(ctx, file, next.certificate.PEM)
		var refused *runtime.Refusal
		if errors.As(err, &refused) {
			// What HAProxy starts from are the files of what it serves.
			if err := a.trees.writeHSM(a.current); err != nil {
				return err
			}
			a.refusedCertificates[next.name] = refusedCertificate{next.certificate.Digest, refused.Message}
			a.Log.Error("HAProxy refuses the certificate; the former one is served on", "certificate", next.name, "message", refused.Message)
			return nil
		}
		if err != nil {
			return err
		}
		served, err := admin.Certificate(ctx, file)
		if err != nil {
			return err
		}
		if served.SerialNumber != next.certificate.SerialNumber {
			return fmt.Errorf("HAProxy serves serial number %s after it took %s", served.SerialNumber, next.certificate.SerialNumber)
		}
	}
	if err := a.trees.writeCertificate(a.current, next.name, next.certificate); err != nil {
		return err
	}
	state := a.current.clone()
	state.Certificates[next.name] = next.certificate
	a.current.state = state
	delete(a.refusedCertificates, next.name)
	if seen := a.secrets[next.certificate.Secret].Seen; !seen.IsZero() {
		a.Metrics.applied("certificate", time.Since(seen))
	}
	return a.trees.writeState(a.current)
}

// setServers moves servers in the tree and then in HAProxy. The other way round,
// the next process of an agent that ends in between would move them back.
func (a *Agent) setServers(ctx context.Context, next setServers) error {
	started := time.Now()
	changed := *a.current
	changed.Slots = next.slots
	if err := a.trees.writeBackends(&changed); err != nil {
		return err
	}
	a.current.Slots = next.slots
	if a.proxy.up {
		admin := a.trees.admin(a.current.Name)
		for _, change := range additionsFirst(next.changes) {
			if err := setServer(ctx, admin, change); err != nil {
				a.synchronised = worker{} // some have moved; synchronise moves the others
				return err
			}
		}
	}
	a.Metrics.endpoints.Add(float64(len(next.changes)))
	a.Metrics.applied("endpoints", time.Since(started))
	return nil
}

// configMap takes in the gateway's ConfigMap.
func (a *Agent) configMap(m *corev1.ConfigMap, err error) {
	name := "ConfigMap " + dataplane.ObjectName(a.Gateway)
	if !a.noteObject(name, m != nil, err) {
		return
	}
	a.unusable = nil
	p, err := parsePublished(m.Data, a.Pod)
	if err != nil {
		a.published = nil
		a.unusable, _ = errors.AsType[*unusable](err)
		a.Log.Error("what the operator published cannot be used", "error", err)
		return
	}
	a.published = p
}

// secret takes in a Secret.
func (a *Agent) secret(name string, s *corev1.Secret, err error) {
	known := a.secrets[name]
	if err != nil && known.Certificate == nil && known.Problem == "" || err == nil && s == nil {
		problem := "does not exist; create it, or change the gateway"
		if err != nil {
			problem = "cannot be read: " + err.Error()
		}
		a.secrets[name] = secret{Problem: fmt.Sprintf("Secret %q %s", name, problem), Seen: time.Now()}
	}
	if !a.noteObject("Secret "+name, s != nil, err) {
		return
	}
	c, err := parseCertificate(s)
	if err != nil {
		a.secrets[name] = secret{Problem: err.Error(), Seen: time.Now()}
		a.Log.Error("a Secret's content cannot be served", "secret", name, "error", err)
		return
	}
	a.secrets[name] = secret{Certificate: c, Seen: time.Now()}
}

// noteObject keeps what is wrong with reading an object, for the status. It
// says whether there is an object to take in.
func (a *Agent) noteObject(name string, exists bool, err error) bool {
	before := a.objectProblems[name]
	delete(a.objectProblems, name)
	switch {
	case err != nil:
		a.objectProblems[name] = fmt.Sprintf("%s cannot be read: %v", name, err)
	case !exists:
		a.objectProblems[name] = name + " does not exist"
	}
	if now := a.objectProblems[name]; now != before && now != "" {
		a.Log.Warn("an object cannot be had; what is known of it stays in force", "problem", now)
	}
	return exists && err == nil
}

// watch the Secrets that are needed, and no others.
func (a *Agent) watch(ctx context.Context) {
	a.watchSecrets(ctx, a.watched, secretsNeeded(a.observed, a.own), a.secret, func(name string) { delete(a.secrets, name) })
	a.watchSecrets(ctx, a.watchedMembers, memberSecrets(a.observed, a.own), a.memberSecret, a.forgetMember)
}

// watchSecrets takes in what is needed, and forgets what is not any more.
func (a *Agent) watchSecrets(ctx context.Context, watched map[string]context.CancelFunc, needed []string,
	take func(string, *corev1.Secret, error), forget func(string)) {
	for _, name := range needed {
		if watched[name] == nil {
			watchCtx, cancel := context.WithCancel(ctx)
			watched[name] = cancel
			go a.Objects.Secret(watchCtx, name, func(s *corev1.Secret, err error) {
				a.post(watchCtx, func() {
					if watchCtx.Err() == nil {
						take(name, s, err)
					}
				})
			})
		}
	}
	for name, cancel := range watched {
		if !slices.Contains(needed, name) {
			cancel()
			delete(watched, name)
			forget(name)
			delete(a.objectProblems, "Secret "+name)
		}
	}
}
