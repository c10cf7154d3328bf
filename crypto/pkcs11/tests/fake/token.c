/*
 * A PKCS#11 module with one token that does as it is told: tests of the library over it need no luck and no hardware.
 *
 *   cc -shared -fPIC -O1 -o a.so token.c -lcrypto
 *
 * What it is told, and what it counts, is in the file a.so.state, which is mapped into memory: by the module in whatever
 * process it is loaded, and by the test (tests/common/fake.rs has the same structure). Its keys are the files LABEL.pem
 * beside it, read at each search and each signature. Signatures are OpenSSL's, and so real.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <glob.h>
#include <openssl/core_names.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/params.h>
#include <openssl/pem.h>
#include <openssl/rsa.h>
#include <openssl/x509.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* PKCS#11 2.40, as far as it is used here: written from the standard, apart from what the library under test has. */
typedef unsigned long ulong;
typedef unsigned char byte;
enum {
    OK = 0, SLOT_ID_INVALID = 3, GENERAL_ERROR = 5, ARGUMENTS_BAD = 7, ATTRIBUTE_TYPE_INVALID = 0x12, DATA_LEN_RANGE = 0x21, TOKEN_NOT_PRESENT = 0xe0,
    KEY_HANDLE_INVALID = 0x60, MECHANISM_INVALID = 0x70, MECHANISM_PARAM_INVALID = 0x71, OPERATION_ACTIVE = 0x90,
    OPERATION_NOT_INITIALIZED = 0x91, PIN_INCORRECT = 0xa0, PIN_LOCKED = 0xa4, SESSION_COUNT = 0xb1,
    SESSION_HANDLE_INVALID = 0xb3, USER_ALREADY_LOGGED_IN = 0x100, USER_NOT_LOGGED_IN = 0x101, BUFFER_TOO_SMALL = 0x150,
    NOT_INITIALIZED = 0x190, ALREADY_INITIALIZED = 0x191,
};
enum { CKM_RSA_PKCS = 1, CKM_RSA_X_509 = 3, CKM_RSA_PKCS_PSS = 0xd, CKM_ECDSA = 0x1041, CKM_ML_DSA = 0x1d };
enum { CKM_SHA256 = 0x250, CKM_SHA384 = 0x260, CKM_SHA512 = 0x270, CKA_LABEL = 3, CKA_PUBLIC_KEY_INFO = 0x129 };
typedef struct { byte major, minor; } version;
typedef struct { ulong type; void *value; ulong len; } attribute;
typedef struct { ulong type; void *parameter; ulong len; } mechanism;
typedef struct { ulong hash, mgf, salt; } pss;
typedef struct { ulong hedge; byte *context; ulong len; } additional;
typedef struct { ulong slot, state, flags, error; } session_info;
typedef struct {
    byte label[32], manufacturer[32], model[16], serial[16];
    ulong flags, numbers[10];
    version hardware, firmware;
    byte time[16];
} token_info;

/* What the token is told of a call, and what it counts of it. */
enum {
    INITIALIZE, FINALIZE, GET_SLOT_LIST, GET_TOKEN_INFO, OPEN_SESSION, CLOSE_SESSION, GET_SESSION_INFO, LOGIN, FIND_OBJECTS,
    SIGN_INIT, SIGN, CALLS
};
typedef struct {
    _Atomic uint64_t calls; /* how many there were */
    _Atomic uint64_t inside, peak; /* how many there are now, and were at most at a time */
    _Atomic uint64_t hang;  /* each call waits until this is over */
    _Atomic uint64_t micros; /* each call takes as long */
    _Atomic uint64_t code, times; /* so many calls more answer with this code */
} call;
typedef struct {
    call of[CALLS];
    _Atomic uint64_t absent; /* the token is not there: what calls that need it answer */
    _Atomic uint64_t hidden; /* it is not in the list of slots, and the slot's sessions are as they were */
    _Atomic uint64_t epoch;  /* sessions of an earlier one are lost */
    _Atomic uint64_t lost;   /* what they answer */
    _Atomic uint64_t pin;    /* its PIN, in digits: 0 is 1234 */
    _Atomic uint64_t refused; /* wrong PINs in a row: it locks itself at the third */
    _Atomic uint64_t most;   /* sessions at a time; 0: as many as there is room for */
    _Atomic uint64_t open;   /* sessions */
    _Atomic uint64_t signatures;
    _Atomic uint64_t violations; /* of PKCS#11's rules, by its user */
    _Atomic uint64_t missed; /* once a call found that it is not there, C_Initialize alone finds it again */
    _Atomic uint64_t logouts; /* logins from before this one are lost, and nobody is told */
    char violation[128];     /* the last one */
} state;
/* Who measures counts on these: crypto/handshake/src/token.rs. */
_Static_assert(offsetof(state, of[SIGN].micros) == 592 && offsetof(state, pin) == 648, "where the program looks");
_Static_assert(offsetof(state, signatures) == 680 && sizeof(state) == 840, "where the program looks");

static state *told;
static char folder[4096];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

typedef struct {
    int open, searching, signing;
    atomic_int busy;
    uint64_t epoch;
    ulong found, how, key;
    pss pss;
    byte context[255];
    ulong context_len;
} session;
enum { SESSIONS = 256, KEYS = 64, LABEL = 64 };
static session sessions[SESSIONS];
static char keys[KEYS][LABEL];
static int initialised;
static _Atomic uint64_t seen_absent; /* what the library knows of it where it looks in C_Initialize alone */
static uint64_t login_epoch; /* 1 + the epoch in which somebody logged in: sessions that are lost take the login with them */
static uint64_t login_logouts; /* how many there had been then */

/* Whether the token is not there: what calls that need it answer. */
static ulong absent(void) {
    if (told->absent) seen_absent = told->absent;
    return told->missed ? seen_absent : told->absent;
}

static int logged_in(void) { return login_epoch == told->epoch + 1 && login_logouts == told->logouts; }

__attribute__((constructor)) static void map(void) {
    Dl_info about;
    char path[4200];
    int file;
    if (!dladdr(keys, &about)) abort();
    snprintf(path, sizeof path, "%s.state", about.dli_fname);
    snprintf(folder, sizeof folder, "%s", about.dli_fname);
    *strrchr(folder, '/') = 0;
    if ((file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600)) < 0 || ftruncate(file, sizeof(state))) abort();
    told = mmap(NULL, sizeof(state), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (told == MAP_FAILED) abort();
    close(file);
}

static void violation(const char *what) {
    snprintf(told->violation, sizeof told->violation, "%s", what);
    told->violations++;
}

static void wait_for(uint64_t micros) {
    struct timespec time = {micros / 1000000, micros % 1000000 * 1000};
    while (nanosleep(&time, &time)) ;
}

/* A call begins: it hangs, takes its time, and answers with a code if it is told to. */
static ulong begin(int which) {
    call *c = &told->of[which];
    uint64_t inside = ++c->inside, times = c->times;
    c->calls++;
    for (uint64_t peak = c->peak; peak < inside && !atomic_compare_exchange_weak(&c->peak, &peak, inside);) ;
    while (c->hang) wait_for(1000);
    if (c->micros) wait_for(c->micros);
    while (times && !atomic_compare_exchange_weak(&c->times, &times, times - 1)) ;
    if (times && c->code) return c->code;
    if (which == INITIALIZE) return OK;
    if (!initialised) {
        violation("a call before C_Initialize or after C_Finalize");
        return NOT_INITIALIZED;
    }
    return OK;
}

static ulong end(int which, ulong code) {
    told->of[which].inside--;
    return code;
}

static ulong initialize(void *args) {
    (void)args;
    ulong code = begin(INITIALIZE);
    if (code == OK && initialised) code = ALREADY_INITIALIZED;
    if (code == OK) {
        initialised = 1;
        seen_absent = told->absent;
    }
    return end(INITIALIZE, code);
}

static ulong finalize(void *reserved) {
    (void)reserved;
    ulong code = begin(FINALIZE);
    if (code == OK) {
        for (int i = INITIALIZE; i < CALLS; i++)
            if (i != FINALIZE && told->of[i].inside) violation("C_Finalize while another call is not over");
        pthread_mutex_lock(&lock);
        memset(sessions, 0, sizeof sessions);
        told->open = 0;
        initialised = login_epoch = 0;
        pthread_mutex_unlock(&lock);
    }
    return end(FINALIZE, code);
}

static ulong get_slot_list(byte present, ulong *slots, ulong *count) {
    ulong code = begin(GET_SLOT_LIST), there = told->hidden || (present && absent()) ? 0 : 1;
    if (code == OK) {
        if (slots && *count < there) code = BUFFER_TOO_SMALL;
        else if (slots && there) slots[0] = 7;
        *count = there;
    }
    return end(GET_SLOT_LIST, code);
}

static ulong get_token_info(ulong slot, token_info *info) {
    ulong code = begin(GET_TOKEN_INFO);
    if (code == OK && slot != 7) code = SLOT_ID_INVALID;
    if (code == OK) code = absent();
    if (code == OK) {
        memset(info, ' ', sizeof *info);
        memcpy(info->label, "fake", 4);
        memcpy(info->serial, "0042", 4);
        info->flags = 0x40d; /* random numbers, login required, PIN initialised, token initialised */
        memset(info->numbers, 0, sizeof info->numbers);
    }
    return end(GET_TOKEN_INFO, code);
}

static ulong open_session(ulong slot, ulong flags, void *application, void *notify, ulong *handle) {
    (void)application, (void)notify;
    ulong code = begin(OPEN_SESSION);
    if (code == OK && slot != 7) code = SLOT_ID_INVALID;
    if (code == OK && !(flags & 4)) code = ARGUMENTS_BAD;
    if (code == OK) code = absent();
    pthread_mutex_lock(&lock);
    if (code == OK && told->most && told->open >= told->most) code = SESSION_COUNT;
    if (code == OK) {
        int i = 1;
        while (i < SESSIONS && sessions[i].open) i++;
        if (i == SESSIONS) code = SESSION_COUNT;
        else {
            memset(&sessions[i], 0, sizeof sessions[i]);
            sessions[i].open = 1;
            sessions[i].epoch = told->epoch;
            told->open++;
            *handle = i;
        }
    }
    pthread_mutex_unlock(&lock);
    return end(OPEN_SESSION, code);
}

/* The session of a handle, which one thread uses at a time: done() gives it back. */
static ulong use(ulong handle, session **found) {
    *found = NULL;
    ulong code = absent();
    if (code != OK) return code;
    if (handle == 0 || handle >= SESSIONS || !sessions[handle].open) {
        violation("a session that is not open");
        return SESSION_HANDLE_INVALID;
    }
    session *s = &sessions[handle];
    if (s->epoch != told->epoch) return told->lost ? told->lost : SESSION_HANDLE_INVALID;
    if (atomic_exchange(&s->busy, 1)) {
        violation("two threads in one session");
        return GENERAL_ERROR;
    }
    *found = s;
    return OK;
}

static void done(session *s) {
    if (s) s->busy = 0;
}

static ulong close_session(ulong handle) {
    ulong code = begin(CLOSE_SESSION);
    session *s = handle < SESSIONS ? &sessions[handle] : NULL;
    pthread_mutex_lock(&lock);
    if (code == OK && (!s || !s->open)) {
        violation("a session is closed that is not open");
        code = SESSION_HANDLE_INVALID;
    } else if (s && s->open) {
        if (s->busy) violation("a session is closed that is in use");
        s->open = 0;
        if (--told->open == 0) login_epoch = 0; /* as PKCS#11 has it */
    }
    pthread_mutex_unlock(&lock);
    return end(CLOSE_SESSION, code);
}

static ulong get_session_info(ulong handle, session_info *info) {
    session *s = NULL;
    ulong code = begin(GET_SESSION_INFO);
    if (code == OK) code = use(handle, &s);
    if (code == OK) *info = (session_info){7, logged_in() ? 1 : 0, 4, 0};
    done(s);
    return end(GET_SESSION_INFO, code);
}

static ulong login(ulong handle, ulong user, const char *pin, ulong len) {
    session *s = NULL;
    char right[32];
    ulong code = begin(LOGIN);
    if (code == OK) code = use(handle, &s);
    if (code == OK && user != 1) code = ARGUMENTS_BAD;
    pthread_mutex_lock(&lock);
    if (code == OK && logged_in()) code = USER_ALREADY_LOGGED_IN;
    if (code == OK && told->refused >= 3) code = PIN_LOCKED;
    if (code == OK) {
        snprintf(right, sizeof right, "%llu", told->pin ? (unsigned long long)told->pin : 1234);
        if (len == strlen(right) && !memcmp(pin, right, len)) {
            login_epoch = told->epoch + 1;
            login_logouts = told->logouts;
            told->refused = 0;
        } else code = ++told->refused >= 3 ? PIN_LOCKED : PIN_INCORRECT;
    }
    pthread_mutex_unlock(&lock);
    done(s);
    return end(LOGIN, code);
}

static void file_of(const char *label, char path[4300]) { snprintf(path, 4300, "%s/%s.pem", folder, label); }

static ulong find_init(ulong handle, attribute *wanted, ulong count) {
    session *s;
    ulong code = use(handle, &s), named = 0;
    if (code == OK && s->searching) code = OPERATION_ACTIVE;
    if (code == OK) {
        s->searching = 1;
        s->found = 0;
        for (ulong i = 0; i < count; i++) {
            if (wanted[i].type != CKA_LABEL || wanted[i].len >= LABEL) continue;
            named = 1;
            char label[LABEL] = {0}, path[4300];
            memcpy(label, wanted[i].value, wanted[i].len);
            file_of(label, path);
            if (access(path, R_OK)) continue;
            pthread_mutex_lock(&lock);
            for (int k = 0; k < KEYS && !s->found; k++) {
                if (!keys[k][0]) memcpy(keys[k], label, LABEL);
                /* Handles hold for their session's epoch. */
                if (!strcmp(keys[k], label)) s->found = (told->epoch << 8) + k + 1;
            }
            pthread_mutex_unlock(&lock);
        }
        if (!named) { /* is there any key? */
            char all[4300];
            glob_t keys;
            file_of("*", all);
            if (!glob(all, GLOB_NOSORT, NULL, &keys)) s->found = (told->epoch << 8) + KEYS;
            globfree(&keys);
        }
        if (!logged_in()) s->found = 0; /* they are private */
    }
    done(s);
    return code;
}

static ulong find(ulong handle, ulong *found, ulong most, ulong *count) {
    session *s = NULL;
    ulong code = begin(FIND_OBJECTS);
    if (code == OK) code = use(handle, &s);
    if (code == OK && !s->searching) code = OPERATION_NOT_INITIALIZED;
    if (code == OK) {
        *count = s->found && most ? 1 : 0;
        if (*count) *found = s->found;
        s->found = 0;
    }
    done(s);
    return end(FIND_OBJECTS, code);
}

static ulong find_final(ulong handle) {
    session *s;
    ulong code = use(handle, &s);
    if (code == OK && !s->searching) code = OPERATION_NOT_INITIALIZED;
    if (s) s->searching = 0;
    done(s);
    return code;
}

static EVP_PKEY *read_key(ulong index) {
    char path[4300];
    file_of(keys[index], path);
    FILE *file = fopen(path, "re");
    EVP_PKEY *key = file ? PEM_read_PrivateKey(file, NULL, NULL, NULL) : NULL;
    if (file) fclose(file);
    return key;
}

/* Of a key there is its public half to be had, and nothing else. */
static ulong get_attribute_value(ulong handle, ulong key, attribute *wanted, ulong count) {
    session *s;
    ulong code = use(handle, &s), index = (key & 0xff) - 1;
    if (code == OK && (key >> 8 != told->epoch || index >= KEYS || !keys[index][0])) code = KEY_HANDLE_INVALID;
    for (ulong i = 0; code == OK && i < count; i++) {
        if (wanted[i].type != CKA_PUBLIC_KEY_INFO) {
            wanted[i].len = (ulong)-1;
            code = ATTRIBUTE_TYPE_INVALID;
            break;
        }
        EVP_PKEY *found = read_key(index);
        byte *der = NULL;
        int len = found ? i2d_PUBKEY(found, &der) : -1;
        if (len < 0) code = KEY_HANDLE_INVALID;
        else if (wanted[i].value && wanted[i].len < (ulong)len) code = BUFFER_TOO_SMALL;
        else if (wanted[i].value) memcpy(wanted[i].value, der, (size_t)len);
        wanted[i].len = len < 0 ? (ulong)-1 : (ulong)len;
        OPENSSL_free(der);
        EVP_PKEY_free(found);
    }
    done(s);
    return code;
}

static ulong sign_init(ulong handle, mechanism *how, ulong key) {
    session *s = NULL;
    ulong code = begin(SIGN_INIT), index = (key & 0xff) - 1;
    if (code == OK) code = use(handle, &s);
    if (code == OK && !logged_in()) code = USER_NOT_LOGGED_IN;
    if (code == OK && s->signing) code = OPERATION_ACTIVE;
    if (code == OK && (key >> 8 != told->epoch || index >= KEYS || !keys[index][0])) code = KEY_HANDLE_INVALID;
    if (code == OK) {
        s->how = how->type;
        s->key = index;
        s->context_len = 0;
        additional *a = how->parameter;
        switch (how->type) {
        case CKM_RSA_PKCS: case CKM_RSA_X_509: case CKM_ECDSA:
            if (how->len) code = MECHANISM_PARAM_INVALID;
            break;
        case CKM_RSA_PKCS_PSS:
            if (how->len != sizeof s->pss) code = MECHANISM_PARAM_INVALID;
            else memcpy(&s->pss, how->parameter, sizeof s->pss);
            break;
        case CKM_ML_DSA:
            if (how->len == 0) break;
            if (how->len != sizeof *a || a->len > sizeof s->context) code = MECHANISM_PARAM_INVALID;
            else memcpy(s->context, a->context, s->context_len = a->len);
            break;
        default:
            code = MECHANISM_INVALID;
        }
    }
    if (code == OK) s->signing = 1;
    done(s);
    return end(SIGN_INIT, code);
}

static const EVP_MD *digest(ulong hash) {
    return hash == CKM_SHA256 ? EVP_sha256() : hash == CKM_SHA384 ? EVP_sha384() : hash == CKM_SHA512 ? EVP_sha512() : NULL;
}

/* The two numbers of ECDSA, each as long as the curve has it. */
static int numbers(const byte *der, size_t len, byte *out, size_t half) {
    ECDSA_SIG *both = d2i_ECDSA_SIG(NULL, &der, (long)len);
    int ok = both && BN_bn2binpad(ECDSA_SIG_get0_r(both), out, (int)half) > 0 &&
             BN_bn2binpad(ECDSA_SIG_get0_s(both), out + half, (int)half) > 0;
    ECDSA_SIG_free(both);
    return ok;
}

static ulong make(session *s, const byte *data, ulong len, byte *out, ulong *room) {
    byte made[8192];
    size_t n = sizeof made;
    EVP_PKEY *key = read_key(s->key);
    if (!key) return KEY_HANDLE_INVALID;
    EVP_PKEY_CTX *ctx = EVP_PKEY_CTX_new(key, NULL);
    EVP_MD_CTX *whole = EVP_MD_CTX_new();
    const EVP_MD *md = digest(s->pss.hash);
    int ok = 0;
    if (s->how == CKM_ML_DSA) {
        OSSL_PARAM context[] = {
            OSSL_PARAM_construct_octet_string("context-string", s->context, s->context_len), OSSL_PARAM_construct_end()
        };
        ok = EVP_DigestSignInit_ex(whole, NULL, NULL, NULL, NULL, key, context) == 1 &&
             EVP_DigestSign(whole, made, &n, data, len) == 1;
    } else if (EVP_PKEY_sign_init(ctx) == 1) {
        /* Longer than the curve has it some tokens refuse a digest, and OpenSSL cuts it. */
        if (s->how == CKM_ECDSA) ok = len <= ((size_t)EVP_PKEY_get_bits(key) + 7) / 8;
        if (s->how == CKM_RSA_PKCS) ok = EVP_PKEY_CTX_set_rsa_padding(ctx, RSA_PKCS1_PADDING) == 1;
        if (s->how == CKM_RSA_X_509) ok = EVP_PKEY_CTX_set_rsa_padding(ctx, RSA_NO_PADDING) == 1;
        if (s->how == CKM_RSA_PKCS_PSS)
            ok = md && EVP_PKEY_CTX_set_rsa_padding(ctx, RSA_PKCS1_PSS_PADDING) == 1 &&
                 EVP_PKEY_CTX_set_signature_md(ctx, md) == 1 && EVP_PKEY_CTX_set_rsa_mgf1_md(ctx, md) == 1 &&
                 EVP_PKEY_CTX_set_rsa_pss_saltlen(ctx, (int)s->pss.salt) == 1;
        ok = ok && EVP_PKEY_sign(ctx, made, &n, data, len) == 1;
        if (ok && s->how == CKM_ECDSA) {
            byte der[256];
            size_t half = ((size_t)EVP_PKEY_get_bits(key) + 7) / 8;
            ok = n <= sizeof der;
            if (ok) {
                memcpy(der, made, n);
                ok = numbers(der, n, made, half);
                n = 2 * half;
            }
        }
    }
    EVP_MD_CTX_free(whole);
    EVP_PKEY_CTX_free(ctx);
    EVP_PKEY_free(key);
    ERR_clear_error();
    if (!ok) return DATA_LEN_RANGE;
    if (*room < n) return BUFFER_TOO_SMALL;
    memcpy(out, made, n);
    *room = n;
    told->signatures++;
    return OK;
}

static ulong sign(ulong handle, const byte *data, ulong len, byte *out, ulong *room) {
    session *s = NULL;
    ulong code = use(handle, &s);
    ulong told_code = begin(SIGN); /* it hangs with the session in use, as a device does */
    if (code == OK) code = told_code;
    if (code == OK) code = absent(); /* taken away in mid-signature */
    if (code == OK && !s->signing) code = OPERATION_NOT_INITIALIZED;
    if (code == OK) code = make(s, data, len, out, room);
    if (s && code != BUFFER_TOO_SMALL) s->signing = 0; /* with that it goes on, as PKCS#11 has it */
    done(s);
    return end(SIGN, code);
}

/* The table: what is not here is null, as in old libraries. */
static struct {
    version version;
    void *functions[68];
} table = {.version = {2, 40}, .functions = {
    [0] = initialize, [1] = finalize, [4] = get_slot_list, [6] = get_token_info, [12] = open_session, [13] = close_session,
    [15] = get_session_info, [18] = login, [24] = get_attribute_value, [26] = find_init, [27] = find, [28] = find_final, [42] = sign_init, [43] = sign,
}};

ulong C_GetFunctionList(void **list) {
    *list = &table;
    return OK;
}
