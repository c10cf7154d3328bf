package agent

import (
	"bytes"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/dataplane"
	"qtls.dev/qtls/internal/haproxy"
	"qtls.dev/qtls/internal/hsm"
	"qtls.dev/qtls/internal/keypair"
)

// Private keys may lie in HSMs. HAProxy then has pkcs11.conf of libqtls_pkcs11.so
// in its environment, by way of the link `current`: which members of the pool
// there are, how they are reached, and the keys' labels and public halves. What
// lies in hsm/<Secret>/current are the clients' credentials for the members: read
// at each connection, and so no part of a tree. It is a link: they are replaced
// together, for a certificate is of no use with another's key.

const (
	hsmDir    = "hsm"
	keysDir   = "keys"
	statusDir = "status"

	// mostAbandonedJobs of a worker: each is memory and a session that a client
	// who left took with it. At twice as many the module lets threads wait
	// for signatures.
	mostAbandonedJobs = 2000
	// leastAge of a worker that is replaced for that. Anybody can leave so many
	// jobs within seconds, and each reload ends connections that outlast the
	// drain time-out, on all listeners. In a younger worker the module's own
	// limit holds: threads wait for signatures then, and nothing ends.
	leastAge = 10 * time.Minute
)

// credentialKeys of a member's Secret, and the files of the same names.
var credentialKeys = []string{"ca.crt", corev1.TLSCertKey, corev1.TLSPrivateKeyKey}

// credentials of a pod for the hsmd of a member. Those of a Secret that is not
// there, or of no use, have no files.
type credentials struct {
	files  map[string][]byte
	digest string
}

// setCredentials writes those of a Secret.
type setCredentials struct {
	secret string
	credentials
}

func (a setCredentials) describe() string { return "set credentials " + a.secret }

// hsmKey is a key that lies in an HSM.
type hsmKey struct {
	label  string
	public []byte // PEM
}

// referenceOf a certificate to its key; false where the key is in its Secret. The
// chain is what else the PEM has.
func referenceOf(c *certificate) (reference keypair.Reference, chain []byte, ok bool) {
	if c == nil || c.HSMPool == "" {
		return keypair.Reference{}, nil, false
	}
	var key []byte
	for rest := c.PEM; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if block.Type == "CERTIFICATE" {
			chain = append(chain, pem.EncodeToMemory(block)...)
		} else {
			key = pem.EncodeToMemory(block)
		}
	}
	reference, err := keypair.ParseReference(key)
	return reference, chain, err == nil // it is what parseCertificate wrote
}

// keysInHSMs of trees, either of which may be nil: their URIs. It is never nil,
// which would say that nobody knows.
func keysInHSMs(all ...*tree) []string {
	keys := []string{}
	for _, t := range all {
		if t == nil {
			continue
		}
		for _, c := range t.Certificates {
			if reference, _, ok := referenceOf(c); ok {
				keys = append(keys, reference.URI())
			}
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

// hsmKeyOf a certificate; false where the key is in its Secret.
func hsmKeyOf(c *certificate) (hsmKey, bool) {
	reference, chain, ok := referenceOf(c)
	if !ok {
		return hsmKey{}, false
	}
	certificates, err := keypair.ParseCertificates(chain)
	if err != nil {
		return hsmKey{}, false
	}
	return hsmKey{reference.Label, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: certificates[0].RawSubjectPublicKeyInfo})}, true
}

// hsmKeys of certificates, by label. Where two have one, the later counts.
func hsmKeys(certificates []*certificate) []hsmKey {
	byLabel := map[string]hsmKey{}
	for _, c := range certificates {
		if k, ok := hsmKeyOf(c); ok {
			byLabel[k.label] = k
		}
	}
	var keys []hsmKey
	for _, label := range slices.Sorted(maps.Keys(byLabel)) {
		keys = append(keys, byLabel[label])
	}
	return keys
}

// replacesKey says whether a certificate has another key of an HSM than one that
// is served, under the same label. A process keeps the key that it knows by a
// label, so that only a new one serves such a certificate.
func replacesKey(next *certificate, served map[string]*certificate) bool {
	k, ok := hsmKeyOf(next)
	if !ok {
		return false
	}
	for _, c := range served {
		if s, ok := hsmKeyOf(c); ok && s.label == k.label && !bytes.Equal(s.public, k.public) {
			return true
		}
	}
	return false
}

// withKeyOf is the current state with a certificate, and with all others that
// have its key by now: a label stands for one key.
func withKeyOf(next *certificate, name string, in observed, me own) state {
	s := me.current.clone()
	s.Certificates[name] = next
	k, _ := hsmKeyOf(next)
	for _, c := range me.current.Revision.Certificates {
		now, _ := candidate(c, in, me)
		if other, ok := hsmKeyOf(now); ok && other.label == k.label && bytes.Equal(other.public, k.public) {
			s.Certificates[c.Name] = now
		}
	}
	return s
}

// missingLibrary is what a member has whose library came into the HSMPool after
// this pod: it is down until the pod is replaced, which is under way.
func missingLibrary(member string) dataplane.Library {
	return dataplane.Library{Module: haproxy.RunDir + "/" + hsmDir + "/the-pod-is-older-than-the-library-of-" + member, Token: "none"}
}

// pkcs11Config is the module's configuration, with the keys in files of the
// names that keyFile tells.
func pkcs11Config(h dataplane.HSM, keys []hsmKey, libraries dataplane.Libraries, credentialsDir, status string, keyFile func(hsmKey) string) string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("# Written by qtls-agent.")
	line("[slot]")
	line("label = %s", h.Pool)
	order := "ordered"
	if h.Spread {
		order = "spread"
	}
	line("order = %s", order)
	line("status-dir = %s", status)
	line("descriptors = %d", haproxy.MostDescriptors)
	for _, m := range h.Members {
		line("\n[member %s]", m.Name)
		if m.InPod {
			l, ok := libraries[m.Name]
			if !ok {
				l = missingLibrary(m.Name)
			}
			line("module = %s", l.Module)
			if l.Token != "" {
				line("token = %s", l.Token)
			} else {
				line("serial = %s", l.Serial)
			}
			line("pin-file = %s", haproxy.PINFile(m.Name))
		} else {
			line("address = %s", m.Address)
			line("server-name = %s", m.ServerName)
			line("ca-file = %s", filepath.Join(credentialsDir, m.Secret, currentLink, "ca.crt"))
			line("certificate-file = %s", filepath.Join(credentialsDir, m.Secret, currentLink, corev1.TLSCertKey))
			line("key-file = %s", filepath.Join(credentialsDir, m.Secret, currentLink, corev1.TLSPrivateKeyKey))
		}
		line("sessions = %d", m.Sessions)
		line("timeout = %dms", h.TimeoutMilliseconds)
	}
	for _, k := range keys {
		line("\n[key %s]", k.label)
		line("public-key = %s", keyFile(k))
	}
	return b.String()
}

// writeHSM writes the module's configuration for a tree's certificates, and for
// those that are about to be among them.
func (t trees) writeHSM(tr *tree, more ...*certificate) error {
	if tr.Revision.HSM == nil {
		return nil
	}
	var certificates []*certificate
	for _, name := range slices.Sorted(maps.Keys(tr.Certificates)) {
		certificates = append(certificates, tr.Certificates[name])
	}
	keys := hsmKeys(append(certificates, more...))
	// Under a name of its content: the module may be reading the former one.
	keyFile := func(k hsmKey) string { return t.path(tr.Name, hsmDir, keysDir, digest(k.public)+".pem") }
	for _, k := range keys {
		if err := writeFile(keyFile(k), k.public); err != nil {
			return err
		}
	}
	status := t.hsmStatusDir(tr.Name)
	if err := os.MkdirAll(status, 0o700); err != nil {
		return err
	}
	path, config := t.path(tr.Name, haproxy.PKCS11File), pkcs11Config(*tr.Revision.HSM, keys, t.libraries, t.credentials(), status, keyFile)
	former, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := writeFile(path, []byte(config)); err != nil {
		return err
	}
	return removeUnnamed(t.path(tr.Name, hsmDir, keysDir), string(former), config)
}

// removeUnnamed files of a folder: those that none of the configurations names. Keys are
// renewed for as long as a tree lives, and the folder is in memory.
func removeUnnamed(folder string, configs ...string) error {
	files, err := os.ReadDir(folder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, f := range files {
		named := slices.ContainsFunc(configs, func(config string) bool { return strings.Contains(config, f.Name()) })
		if !named && !f.IsDir() {
			err = errors.Join(err, os.Remove(filepath.Join(folder, f.Name())))
		}
	}
	return err
}

// hsmStatusDir is where processes say how the members are: of each tree its
// own, because the check of a configuration runs in another container.
func (t trees) hsmStatusDir(tree string) string { return t.path(tree, hsmDir, statusDir) }

// credentials for members: a folder for each Secret.
func (t trees) credentials(file ...string) string {
	return filepath.Join(append([]string{t.dir, hsmDir}, file...)...)
}

// memberSecrets are those of the published revision's members and of the
// running one's.
func memberSecrets(in observed, me own) []string {
	var names []string
	add := func(r dataplane.Revision) {
		if r.HSM != nil {
			for _, m := range r.HSM.Members {
				if !m.InPod {
					names = append(names, m.Secret)
				}
			}
		}
	}
	if in.published != nil {
		add(in.published.Revision)
	}
	if me.current != nil {
		add(me.current.Revision)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// memberSecret takes in a Secret with credentials. What was written stays where
// it is gone, or of no use: the member may still take it.
func (a *Agent) memberSecret(name string, s *corev1.Secret, err error) {
	exists := a.noteObject("Secret "+name, s != nil, err)
	if _, known := a.credentials[name]; !exists && !known {
		a.credentials[name] = credentials{}
	}
	if !exists {
		return
	}
	c, err := parseCredentials(s)
	if err != nil {
		a.objectProblems["Secret "+name] = fmt.Sprintf("Secret %q %v", name, err)
		a.Log.Error("a member's Secret is of no use; what is known of it stays in force", "secret", name, "problem", err)
	}
	a.credentials[name] = c
}

// parseCredentials reads a member's Secret. The error carries no key material.
func parseCredentials(s *corev1.Secret) (credentials, error) {
	c := credentials{files: map[string][]byte{}}
	var all []byte
	for _, key := range credentialKeys {
		if len(s.Data[key]) == 0 {
			return credentials{}, fmt.Errorf("has no %s, which a member of the gateway's HSMPool needs", key)
		}
		c.files[key] = s.Data[key]
		all = append(append(all, 0), s.Data[key]...)
	}
	pair := hsm.Credentials{CA: s.Data["ca.crt"], Certificate: s.Data[corev1.TLSCertKey], Key: s.Data[corev1.TLSPrivateKeyKey]}
	if _, err := pair.Config(""); err != nil {
		return credentials{}, fmt.Errorf("holds no credentials for a member of the gateway's HSMPool: %w", err)
	}
	c.digest = digest(all)
	return c, nil
}

// memberProblems are those of the members' Secrets, for who can do something
// about them.
func (a *Agent) memberProblems() []string {
	var all []string
	for _, name := range memberSecrets(a.observed, a.own) {
		if problem := a.objectProblems["Secret "+name]; problem != "" {
			all = append(all, problem+"; store in it "+strings.Join(credentialKeys, ", ")+" of a client that may find and sign with the pool's keys")
		}
	}
	return all
}

// forgetMember rids the pod of credentials that nothing needs any more.
func (a *Agent) forgetMember(name string) {
	delete(a.credentials, name)
	delete(a.written, name)
	if err := os.RemoveAll(a.trees.credentials(name)); err != nil {
		a.Log.Warn("credentials for a member of an HSMPool stay in the pod's memory", "secret", name, "error", err)
	}
}

// decideCredentials writes those that have changed.
func decideCredentials(in observed, me own) action {
	for _, name := range slices.Sorted(maps.Keys(in.credentials)) {
		if c := in.credentials[name]; c.digest != "" && c.digest != me.written[name] {
			return setCredentials{name, c}
		}
	}
	return nil
}

// credentialsAwaited says whether nothing is known yet of a member's Secret. One
// that is not there is not waited for: other members may do.
func credentialsAwaited(in observed, r dataplane.Revision) bool {
	return r.HSM != nil && slices.ContainsFunc(r.HSM.Members, func(m dataplane.HSMMember) bool {
		_, known := in.credentials[m.Secret]
		return !known && !m.InPod
	})
}

// setCredentials replaces those of a Secret, all at once. Those of before stay
// until the next time: they may be being read.
func (a *Agent) setCredentials(next setCredentials) error {
	for _, key := range credentialKeys {
		if err := writeFile(a.trees.credentials(next.secret, next.digest, key), next.files[key]); err != nil {
			return err
		}
	}
	link := a.trees.credentials(next.secret, currentLink)
	before, err := os.Readlink(link)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if before == next.digest { // an earlier process of this agent wrote them
		a.written[next.secret] = next.digest
		return nil
	}
	if err := replaceLink(link, next.digest); err != nil {
		return err
	}
	a.written[next.secret] = next.digest
	folders, err := os.ReadDir(a.trees.credentials(next.secret))
	if err != nil {
		return err
	}
	for _, f := range folders {
		if name := f.Name(); f.IsDir() && name != next.digest && name != before {
			if err := os.RemoveAll(a.trees.credentials(next.secret, name)); err != nil {
				return err
			}
		}
	}
	return nil
}

// hsmStatus is what a worker says of the members, and of itself.
type hsmStatus struct {
	Started       time.Time         `json:"started"`
	AbandonedJobs int               `json:"abandonedJobs"`
	Members       []hsmMemberStatus `json:"members"`
	// path of the file that it is from.
	path string
}

type hsmMemberStatus struct {
	Name       string                  `json:"name"`
	State      v1alpha1.HSMMemberState `json:"state"`
	Sessions   int                     `json:"sessions"`
	Signatures uint64                  `json:"signatures"`
	Failures   uint64                  `json:"failures"`
	Failovers  uint64                  `json:"failovers"`
	Latency    struct {
		Count uint64 `json:"count"`
		Sum   uint64 `json:"sum"`
	} `json:"latencyMicros"`
	LastError string    `json:"lastError"`
	Since     time.Time `json:"since"`
}

// inStatus is what the agent's status says of a member: nothing that changes
// with each signature.
func (m hsmMemberStatus) inStatus() dataplane.HSMMemberStatus {
	s := dataplane.HSMMemberStatus{Name: m.Name, State: m.State}
	if m.State != v1alpha1.HSMMemberUp {
		s.Error = m.LastError
	}
	return s
}

// hsmStatus of a worker; nil while it has none.
func (t trees) hsmStatus(tree string, pid int) (*hsmStatus, error) {
	return readHSMStatus(filepath.Join(t.hsmStatusDir(tree), fmt.Sprintf("%d.json", pid)))
}

func readHSMStatus(path string) (*hsmStatus, error) {
	content, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	s := hsmStatus{path: path}
	if err := json.Unmarshal(content, &s); err != nil {
		return nil, err
	}
	return &s, nil
}

// decideRenewal starts anew a worker that clients who left have cost too much,
// and not soon again.
func decideRenewal(in observed, me own) action {
	if in.hsm == nil || in.hsm.AbandonedJobs < mostAbandonedJobs || in.hsmAge < leastAge || !in.proxy.up || in.hsmWorker != in.proxy.worker {
		return nil
	}
	return installable(in, install{me.current.Revision, me.current.clone()}, me)
}

// lookAtHSM reads what the worker says of the members.
func (a *Agent) lookAtHSM() {
	a.hsm, a.hsmWorker = nil, a.proxy.worker
	if running := a.running(); running != nil && running.Revision.HSM != nil {
		a.hsm, _ = a.trees.hsmStatus(running.Name, a.proxy.worker.pid) // a worker that is about to end may take it along
	}
	if a.hsm != nil {
		a.hsmAge = time.Since(a.hsm.Started)
	}
}
