package resources

import (
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/dataplane"
	"qtls.dev/qtls/internal/haproxy"
	"qtls.dev/qtls/internal/hsmpool"
)

// AnnotationHSMLibraries is, on a gateway's Deployment whose pods have vendors'
// libraries, the HSMPool that they are of.
const AnnotationHSMLibraries = v1alpha1.GroupName + "/hsm-libraries"

// libraryPrefix begins the names of all volumes that WithLibraries adds.
const libraryPrefix = "hsm-"

// copyPrefix begins the name of a container that copies, before that of its
// volume.
const copyPrefix = "copy-"

// copyDir is where an image's own `cp` puts its folder.
const copyDir = "/copy"

// addImage gives a container the folder of a vendor's image, under the same
// path. The names of volumes begin with the prefix.
func addImage(spec *corev1.PodSpec, c *corev1.Container, prefix string, m v1alpha1.HSMModule, s Settings) {
	folder := string(m.Folder)
	module := corev1.Volume{Name: prefix + "module", VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: m.Image, PullPolicy: s.ImagePullPolicy}}}
	// An image volume shows the image whole: of it, the folder.
	at := corev1.VolumeMount{Name: module.Name, MountPath: folder, SubPath: strings.TrimPrefix(folder, "/"), ReadOnly: true}
	if m.Copy {
		module.VolumeSource = corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}
		at.SubPath = ""
		spec.InitContainers = append(spec.InitContainers, corev1.Container{
			Name:            copyPrefix + module.Name,
			Image:           m.Image,
			ImagePullPolicy: s.ImagePullPolicy,
			Command:         []string{"cp", "-R", folder + "/.", copyDir},
			Resources:       hsmdDefaults(), // the device is the daemon's alone
			SecurityContext: restricted(),
			VolumeMounts:    []corev1.VolumeMount{{Name: module.Name, MountPath: copyDir}},
		})
	}
	spec.Volumes = append(spec.Volumes, module)
	mount(c, at)
}

// addTemporary gives a container a /tmp: libraries may write locks, logs and
// sockets.
func addTemporary(spec *corev1.PodSpec, c *corev1.Container, name string) {
	spec.Volumes = append(spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: ptr.To(resource.MustParse("64Mi"))}}})
	mount(c, corev1.VolumeMount{Name: name, MountPath: "/tmp"})
}

// addFiles gives a container a library's files and variables. Without those that
// are optional it starts all the same.
func addFiles(spec *corev1.PodSpec, c *corev1.Container, prefix string, m v1alpha1.HSMModule, optional bool) {
	for i, f := range m.Files {
		v, readOnly := corev1.Volume{Name: fmt.Sprintf("%sfiles-%d", prefix, i)}, true
		switch {
		case f.SecretRef != nil:
			v.VolumeSource = ofSecret(f.SecretRef.Name)
		case f.ConfigMapRef != nil:
			v.VolumeSource = ofConfigMap(f.ConfigMapRef.Name)
		default:
			v.PersistentVolumeClaim, readOnly = &corev1.PersistentVolumeClaimVolumeSource{ClaimName: f.PersistentVolumeClaimRef.Name}, false
		}
		if optional {
			makeOptional(&v)
		}
		spec.Volumes = append(spec.Volumes, v)
		mount(c, corev1.VolumeMount{Name: v.Name, MountPath: string(f.Folder), ReadOnly: readOnly})
	}
	for _, e := range m.Environment {
		if !slices.ContainsFunc(c.Env, func(had corev1.EnvVar) bool { return had.Name == e.Name }) {
			c.Env = append(c.Env, corev1.EnvVar{Name: e.Name, Value: e.Value})
		}
	}
}

// makeOptional lets a pod start without the Secret or ConfigMap of a volume,
// whose files appear when that does.
func makeOptional(v *corev1.Volume) {
	switch {
	case v.Secret != nil:
		v.Secret.Optional = ptr.To(true)
	case v.ConfigMap != nil:
		v.ConfigMap.Optional = ptr.To(true)
	}
}

// WithLibraries gives the pods of a gateway the libraries of an HSMPool's
// members: HAProxy's container has them, their files and the PINs, and the agent
// is told of them. Without any, the Deployment is as it was.
func WithLibraries(d *appsv1.Deployment, pool string, libraries []hsmpool.Library, s Settings) *appsv1.Deployment {
	if len(libraries) == 0 {
		return d
	}
	// The order of preference is no business of the pods'.
	libraries = slices.SortedFunc(slices.Values(libraries), func(a, b hsmpool.Library) int { return strings.Compare(a.Member, b.Member) })
	spec := &d.Spec.Template.Spec
	proxy := &spec.Containers[0]
	pod := dataplane.Libraries{}
	addTemporary(spec, proxy, libraryPrefix+"tmp")
	for i, l := range libraries {
		prefix := libraryPrefix + l.Member + "-"
		pod[l.Member] = dataplane.Library{Module: l.Module.Path, Token: l.Token.Token, Serial: l.Token.Serial}
		pin := corev1.Volume{Name: prefix + "pin", VolumeSource: ofSecret(l.Token.PINSecretRef.Name, KeyUserPIN)}
		makeOptional(&pin)
		spec.Volumes = append(spec.Volumes, pin)
		mount(proxy, corev1.VolumeMount{Name: pin.Name, MountPath: path.Dir(haproxy.PINFile(l.Member)), ReadOnly: true})
		if slices.ContainsFunc(libraries[:i], func(before hsmpool.Library) bool {
			return equality.Semantic.DeepEqual(before.Module, l.Module)
		}) {
			continue
		}
		addImage(spec, proxy, prefix, l.Module, s)
		addFiles(spec, proxy, prefix, l.Module, true)
	}
	text, err := json.Marshal(pod)
	if err != nil {
		panic(err) // there is nothing in it that JSON does not have
	}
	agent := &spec.InitContainers[0]
	agent.Env = append(agent.Env, corev1.EnvVar{Name: dataplane.LibrariesEnvironment, Value: string(text)})
	if d.Annotations == nil {
		d.Annotations = map[string]string{}
	}
	d.Annotations[AnnotationHSMLibraries] = pool
	return d
}

// HasLibraries says whether WithLibraries gave the pods any.
func HasLibraries(d *appsv1.Deployment) bool { return d.Annotations[AnnotationHSMLibraries] != "" }

// KeepLibraries gives the pods of a gateway the libraries that those of its
// Deployment have had, as WithLibraries gave them. It is pure.
func KeepLibraries(d, former *appsv1.Deployment) *appsv1.Deployment {
	spec, had := &d.Spec.Template.Spec, former.Spec.Template.Spec
	ofLibrary := func(volume string) bool { return strings.HasPrefix(volume, libraryPrefix) }
	for _, v := range had.Volumes {
		if ofLibrary(v.Name) {
			spec.Volumes = append(spec.Volumes, v)
		}
	}
	proxy := &spec.Containers[0]
	for _, c := range slices.Concat(had.Containers, had.InitContainers) {
		switch agent := &spec.InitContainers[0]; {
		case c.Name == proxy.Name:
			for _, m := range c.VolumeMounts {
				if ofLibrary(m.Name) {
					mount(proxy, m)
				}
			}
			for _, e := range c.Env {
				if !slices.ContainsFunc(proxy.Env, func(ours corev1.EnvVar) bool { return ours.Name == e.Name }) {
					proxy.Env = append(proxy.Env, e)
				}
			}
		case c.Name == agent.Name:
			for _, e := range c.Env {
				if e.Name == dataplane.LibrariesEnvironment {
					agent.Env = append(agent.Env, e)
				}
			}
		case strings.HasPrefix(c.Name, copyPrefix+libraryPrefix):
			spec.InitContainers = append(spec.InitContainers, c)
		}
	}
	if d.Annotations == nil {
		d.Annotations = map[string]string{}
	}
	d.Annotations[AnnotationHSMLibraries] = former.Annotations[AnnotationHSMLibraries]
	return d
}
