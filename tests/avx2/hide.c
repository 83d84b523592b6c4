/* Hides AVX-512, AVX-VNNI and AMX from a process and from the programs it starts.
 *
 * The kernel can make CPUID fault (arch_prctl(ARCH_SET_CPUID), Intel only). The handler of the
 * fault executes the instruction and clears the bits. `run.py` compiles and preloads this file.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#define ARCH_SET_CPUID 0x1012
#define BIT(number) (1u << (number))

/* The bits of leaf 7, from Intel's "Architecture Instruction Set Extensions", chapter 1. */
#define PART_0_EBX                                                                                 \
    (BIT(16) | BIT(17) | BIT(21) | BIT(26) | BIT(27) | BIT(28) | BIT(30) | BIT(31)) /* AVX-512 */
#define PART_0_ECX (BIT(1) | BIT(6) | BIT(11) | BIT(12) | BIT(14)) /* VBMI, VNNI, BITALG, … */
#define PART_0_EDX (BIT(2) | BIT(3) | BIT(8) | BIT(23) | BIT(22) | BIT(24) | BIT(25)) /* FP16, AMX */
#define PART_1_EAX (BIT(4) | BIT(5) | BIT(21) | BIT(23)) /* AVX-VNNI, AVX-512 BF16, AMX, IFMA */
#define PART_1_EDX (BIT(4) | BIT(5) | BIT(8) | BIT(10) | BIT(19)) /* AVX-VNNI-INT8, AVX10, … */

static int (*system_sigaction)(int, const struct sigaction *, struct sigaction *);

static long allow_cpuid(int allowed) { return syscall(SYS_arch_prctl, ARCH_SET_CPUID, allowed); }

static void on_fault(int number, siginfo_t *info, void *context) {
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    const uint8_t *code = (const uint8_t *)registers[REG_RIP];
    if (info->si_code != SI_KERNEL || code[0] != 0x0f || code[1] != 0xa2) { /* not CPUID */
        struct sigaction standard = {.sa_handler = SIG_DFL};
        system_sigaction(number, &standard, NULL);
        if (info->si_code <= 0) raise(number); /* sent by a process: it does not repeat itself */
        return;
    }
    uint32_t leaf = registers[REG_RAX], part = registers[REG_RCX], eax, ebx, ecx, edx;
    allow_cpuid(1);
    __asm__ volatile("cpuid" : "=a"(eax), "=b"(ebx), "=c"(ecx), "=d"(edx) : "a"(leaf), "c"(part));
    allow_cpuid(0);
    if (leaf == 7 && part == 0) ebx &= ~PART_0_EBX, ecx &= ~PART_0_ECX, edx &= ~PART_0_EDX;
    if (leaf == 7 && part == 1) eax &= ~PART_1_EAX, edx &= ~PART_1_EDX;
    registers[REG_RAX] = eax, registers[REG_RBX] = ebx;
    registers[REG_RCX] = ecx, registers[REG_RDX] = edx;
    registers[REG_RIP] += 2;
}

/* Libraries that report crashes would replace the handler. */
int sigaction(int number, const struct sigaction *action, struct sigaction *before) {
    if (!system_sigaction) system_sigaction = dlsym(RTLD_NEXT, "sigaction");
    return number == SIGSEGV && action ? 0 : system_sigaction(number, action, before);
}

__attribute__((constructor)) static void hide(void) {
    struct sigaction action = {
        .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK};
    system_sigaction = dlsym(RTLD_NEXT, "sigaction");
    if (system_sigaction(SIGSEGV, &action, NULL) || allow_cpuid(0)) _exit(125);
}
