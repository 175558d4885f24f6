// Every variable by which launchers tell a process its place in the world.
#pragma once

namespace aliquot::test {

inline constexpr const char* kLauncherVariables[] = {
    "ALIQUOT_RANK",
    "ALIQUOT_WORLD_SIZE",
    "ALIQUOT_LOCAL_RANK",
    "ALIQUOT_LOCAL_SIZE",
    "ALIQUOT_STORE",
    "ALIQUOT_SECRET",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "OMPI_MCA_ess_base_jobid",
    "PMIX_NAMESPACE",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_PROCID",
    "SLURM_LOCALID",
    "SLURM_STEP_NUM_NODES",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "PMI_SIZE"};

}  // namespace aliquot::test
